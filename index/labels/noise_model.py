"""Noise model: the noise rate and the transition probabilities between labels, fitted by maximum likelihood."""

from dataclasses import dataclass

import numpy as np

from index.arrays import Doubles, Floats, Labels, rows_by_value

_POWERS = np.geomspace(0.5, 8, 15)  # exponents of confidences, which wrong labels in training make too uncertain
_LIKENESS = (0.0, 0.5, 1.0, 1.5, 2.0)  # 0: errors give any label; 2: hardly any but similar ones
# Prior label errors of each class, spread by the most likely likeness; without them, overlapping classes count as
# errors of each other.
_SEEN = 30.0
_ROUNDS = 2
_STEPS = 25
MOST_VALUES = 1 << 22  # confidences that are fitted to
_FIRST_SHARE = 0.1
_EPSILON = 1e-7


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """Noise model of labels: confidences to the `power`, normalised, are the class probabilities of an image.

    Row c of the (C, C) `transitions` has the probabilities of the wrong labels of an image of class c.
    """

    noise_rate: float
    power: float
    transitions: Doubles

    def classes(self, confidences: Floats) -> Doubles:
        """(B, C) class probabilities of images from (B, C) confidences, whatever their labels."""
        return _sharpen(np.log(np.maximum(confidences, _EPSILON, dtype=np.float64)), self.power)

    def posterior(self, confidences: Floats, labels: Labels, prior: "LabelPrior | None" = None) -> Doubles:
        """(B, C) probabilities of the true class, given both the confidences and the (B,) labels; rows sum to 1.

        q_i(k) in proportion to s_i(k) L_i(k), with s_i, e and M of `fit_noise_model` and

            L_i(k) = (1 - e) [k = y_i] + e M_k,y_i            without a decision
            L_i(k) = r_i [k = y_i] + (1 - r_i) M_k,y_i        where the label y_i is right with probability r_i
            L_i(k) = r_i [k = y_i] + (1 - r_i) ((1 - e) [k = z_i] + e M_k,z_i)    where it took the place of z_i
        """
        shown, own = self.classes(confidences), np.arange(len(labels))
        if prior is None:
            p_right, before = np.full(len(labels), np.nan), labels
        else:
            p_right, before = prior.p_right, np.where(np.isnan(prior.p_right), labels, prior.before)
        is_known = ~np.isnan(p_right)
        right = np.where(is_known, p_right, 1 - self.noise_rate)
        wrong = np.where(is_known, 1 - p_right, self.noise_rate)
        is_moved = is_known & (before != labels)
        likely = np.where(is_moved, wrong * self.noise_rate, wrong)[:, None] * self.transitions[:, before].T
        likely[own, before] += np.where(is_moved, wrong * (1 - self.noise_rate), 0)
        likely[own, labels] += right
        joint: Doubles = shown * likely
        joint /= np.maximum(joint.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return joint

    def classes_if_wrong(self, confidences: Floats, labels: Labels) -> Doubles:
        """(B, C) class probabilities of images whose (B,) labels are wrong; 0 for these labels."""
        joint = self.classes(confidences) * self.transitions[:, labels].T
        classes: Doubles = joint / np.maximum(joint.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return classes


@dataclass(frozen=True, slots=True)
class LabelPrior:
    """Stated (N,) `p_right` of labels: 1 where a person looked, NaN undecided; and the labels `before` a change."""

    p_right: Doubles
    before: Labels

    def take(self, rows: Labels, *, classes: Labels, labels: Labels) -> "LabelPrior":
        """Prior of (n,) images, with labels renumbered by the sorted `classes`; other earlier labels are lost."""
        before = self.before[rows]
        position = np.searchsorted(classes, before).clip(max=len(classes) - 1)
        return LabelPrior(self.p_right[rows], np.where(classes[position] == before, position, labels))

    def at(self, rows: Labels) -> "LabelPrior":
        """Prior of some images, without renumbering."""
        return LabelPrior(self.p_right[rows], self.before[rows])


def fit_frequency_model(confidences: Floats, labels: Labels, *, count: int) -> NoiseModel:
    """Noise model of very many classes: wrong labels are drawn by the labels' frequencies, the own one among them."""
    frequent = np.bincount(labels, minlength=count) / len(labels)
    logs = np.log(np.maximum(confidences, _EPSILON, dtype=np.float64))
    share, power, _ = _fit(logs, labels, [frequent[labels, None]])
    return NoiseModel(share, power, np.broadcast_to(frequent, (count, count)))


def fit_noise_model(confidences: Floats, labels: Labels) -> NoiseModel:
    """The noise rate and the transition probabilities, by maximum likelihood.

    With p_i(c) the confidences, s_i(c) = p_i(c)^t / sum_k p_i(k)^t, e the noise rate and M_cj the
    probability that a wrong label of an image of class c is j,

        likelihood of y_i = (1 - e) s_i(y_i) + e sum over c of s_i(c) M_c,y_i

    M_cj is in proportion to n_j (a_cj N / n_j)^l, with a_cj the mean confidence in j of the n_c images labelled c; then
    it is estimated twice more from the errors found, with `_SEEN` prior ones. t and l are chosen from grids, e by
    expectation maximisation.
    """
    count = confidences.shape[1]
    images = np.bincount(labels, minlength=count).astype(np.float64)
    size = min(len(labels), max(count, MOST_VALUES // count))
    rows = np.linspace(0, len(labels) - 1, size).round().astype(np.int64)
    logs, given = np.log(np.maximum(confidences[rows], _EPSILON, dtype=np.float64)), labels[rows]
    likeness = _likeness(confidences, labels, images)
    spread = [_rows_to_one(np.maximum(images, _EPSILON) * likeness**power) for power in _LIKENESS]
    share, power, best = _fit(logs, given, [one[:, given].T for one in spread])
    first = transitions = spread[best]
    for _ in range(_ROUNDS):
        shown = _sharpen(logs, power)
        wrong = share * shown * transitions[:, given].T
        wrong /= (wrong.sum(axis=1) + (1 - share) * shown[np.arange(size), given])[:, None]
        seen = np.zeros((count, count))
        np.add.at(seen, given, wrong)
        transitions = _rows_to_one(seen.T * (len(labels) / size) + _SEEN * first)
        _, power, _ = _fit(logs, given, [transitions[:, given].T])
    return NoiseModel(share, power, transitions)


def _likeness(confidences: Floats, labels: Labels, images: Doubles) -> Doubles:
    """(C, C) mean confidence of the images of each label in every other label, divided by its frequency."""
    sums = np.zeros((len(images),) * 2)
    for rows in rows_by_value(labels):
        sums[labels[rows[0]]] = confidences[rows].mean(axis=0, dtype=np.float64)
    frequent = np.maximum(images, 0.5) / images.sum()
    alike: Doubles = np.maximum(sums, 1e-5) / frequent
    return alike


def _rows_to_one(weights: Doubles) -> Doubles:
    """Rows that sum to 1, without their diagonal."""
    np.fill_diagonal(weights, 0)
    scaled: Doubles = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return scaled


def _sharpen(logs: Doubles, power: float) -> Doubles:
    values = power * logs
    values -= values.max(axis=1, keepdims=True)
    np.exp(values, out=values)
    values /= values.sum(axis=1, keepdims=True)
    return values


def _fit(logs: Doubles, given: Labels, by_label: list[Doubles]) -> tuple[float, float, int]:
    """The likeliest noise rate, power and position in `by_label`, (n, C) or (n, 1) probabilities of labels if wrong."""
    best, own = (-np.inf, _FIRST_SHARE, 1.0, 0), np.arange(len(given))
    for power in _POWERS:
        shown = _sharpen(logs, power)
        right = np.maximum(shown[own, given], _EPSILON)
        for number, instead in enumerate(by_label):
            wrong = instead[:, 0] if instead.shape[1] == 1 else np.einsum("nc,nc->n", shown, instead)
            wrong = np.maximum(wrong, 1e-12)
            share = _FIRST_SHARE
            for _ in range(_STEPS):
                share = float(np.mean(share * wrong / (share * wrong + (1 - share) * right)))
            likely = float(np.log(share * wrong + (1 - share) * right).sum())
            if likely > best[0]:
                best = likely, share, float(power), number
    return best[1:]
