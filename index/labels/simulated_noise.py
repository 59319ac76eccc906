"""Simulated label noise, which calibrates the scores of labels to probabilities of a label error.

The confidences of an image are computed without it, so they do not depend on its label, and a simulated wrong label
costs only the reading of its score (as in the target-decoy method of proteomics: Elias and Gygi, 2007).

Wrong labels are simulated of images that show another class, by a noise model, and of images that show none (open-set
noise), at random. The latter have no confident class, which would hide them: a label that is random, though, is among
the least confident third of all labels one time in three, and a right label hardly ever (after Storey, "A direct
approach to false discovery rates", 2002).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from index.arrays import Doubles, Floats, Ids, Labels, rows_by_value
from index.labels.noise_model import NoiseModel, fit_noise_model

SIMULATED = 3  # wrong labels for each image, or more where there are few images
_LEAST_SIMULATED = 20_000
_MOST_EACH = 64
# The noise rate is read from the lowest tenth to nine tenths of the simulated scores; from more where there are few
# images, because hardly any of their wrong labels score as low as that tenth.
_SHARES = (0.1, 0.9)
_MANY, _MOST_OF_FEW = 60, 0.6
_ROUNDS = 3
# Up to here the bound is the noise rate, from there on it moves halfway to that of the noise model: the bound is too
# low where label errors look like right labels, the model's rate too high where there are hardly any.
_BOUND_ALONE, _HALFWAY = 0.05, 0.15
# Share of right labels among the lowest scores, in data without label errors; of labels that no confidence favours.
_ODD = 0.01
_RANKED = 1 << 26  # confidences whose order tells of images that show no class
_MOST_DECAY = 0.9  # greatest decay of right labels from third to third; at 1 all labels could be right
_SHOW_ONE = 0.9  # the images of the highest confidences from this share on show some class
# Where more labels than this look random, the confidences say nothing of the labels, and no label is called random.
_MOST_RANDOM = 2 / 3
_EPSILON = 1e-6

_ROWS_AT_ONCE = 4096

Top: TypeAlias = tuple[Ids, Doubles]
"""(B, k) positions of the highest values of rows, and these."""


def count_simulated(images: int) -> int:
    """Number of wrong labels to simulate for each image."""
    return int(np.clip(-(-_LEAST_SIMULATED // max(images, 1)), SIMULATED, _MOST_EACH))


def simulate_labels(labels: Labels, transitions: Doubles, *, each: int) -> Labels:
    """(N, each) wrong labels for (N,) labels, drawn from (C, C) transition probabilities with a fixed seed."""
    generator, found = np.random.default_rng(0), np.empty((len(labels), each), dtype=np.int64)
    for rows in rows_by_value(labels):
        summed = np.cumsum(transitions[labels[rows[0]]])
        drawn = generator.random((len(rows), each)) * summed[-1]
        found[rows] = np.searchsorted(summed, drawn, side="right").clip(max=len(summed) - 1)
    return found


def draw_labels(labels: Labels, *, each: int) -> Labels:
    """(N, each) labels drawn at random from (N,) ones with a fixed seed."""
    return labels[np.random.default_rng(0).integers(len(labels), size=(len(labels), each))]


def score_labels(confidences: Floats, labels: Labels, top: Top | None = None) -> Doubles:
    """(B, k) scores of labels: log p(y) - 1/4 log of the highest p(c) over c other than y, of (B, C) confidences.

    The lower, the more probably wrong. `top` is what `choose_top` gives of the two highest; None computes it.
    """
    own = np.take_along_axis(confidences, labels, axis=1)
    first, second = np.split((top or choose_top(confidences, count=2))[1], 2, axis=1)
    other = np.where(own >= first, second, first)
    return np.asarray(
        np.log(np.maximum(own, _EPSILON, dtype=np.float64)) - np.log(np.maximum(other, _EPSILON, dtype=np.float64)) / 4
    )


def choose_top(values: Floats | Doubles, *, count: int) -> Top:
    """(B, k) positions of the highest of (B, C) values, the best first, of equal ones the first; and these."""
    left, lines = values.copy(), np.arange(len(values))
    positions = np.empty((len(values), min(count, values.shape[1])), dtype=np.int64)
    for place in range(positions.shape[1]):
        positions[:, place] = left.argmax(axis=1)
        left[lines, positions[:, place]] = -np.inf
    return positions, np.take_along_axis(values, positions, axis=1).astype(np.float64)


class LabelScores:
    """Scores of N labels and of simulated wrong labels of the same images, from confidences given block by block.

    `given` are the scores of the labels, `own` the confidences in them, `highest` those in any label. `wrong` (N, k)
    are simulated labels of images that show another class, (N, 0) to simulate nothing; `drawn` (N, k) as of images of
    none.
    """

    def __init__(self, labels: Labels, wrong: Labels, drawn: Labels, *, count: int) -> None:
        self._labels, self._wrong, self._drawn = labels, wrong, drawn
        self._frequency = np.bincount(labels, minlength=count) / max(len(labels), 1)
        self.given, self._of_wrong, self._of_drawn = np.empty(len(labels)), np.empty(wrong.shape), np.empty(drawn.shape)
        self._thirds, self._stride = np.zeros((3, 2, len(labels))), max(1, len(labels) * count // _RANKED)
        self.own, self.highest = np.zeros((2, len(labels)), dtype=np.float32)

    @classmethod
    def by_frequency(cls, labels: Labels, *, count: int, simulates: bool = True) -> "LabelScores":
        """Scores with wrong labels drawn by frequency, for too many labels for a noise model of every pair."""
        drawn = draw_labels(labels, each=count_simulated(len(labels)) if simulates else 0)
        wrong = np.where(drawn == labels[:, None], (drawn + 1) % count, drawn)  # the next label, where it drew its own
        return cls(labels, wrong, drawn, count=count)

    def add(self, rows: Ids, confidences: Floats) -> None:
        """Score the labels of (B,) rows, of which these are the (B, C) float32 confidences."""
        labels, top = self._labels[rows, None], choose_top(confidences, count=2)
        self.given[rows] = score_labels(confidences, labels, top)[:, 0]
        self.own[rows] = np.take_along_axis(confidences, labels, axis=1)[:, 0]
        self.highest[rows] = top[1][:, 0]
        if not self._wrong.shape[1]:
            return
        self._of_wrong[rows] = score_labels(confidences, self._wrong[rows], top)
        self._of_drawn[rows] = score_labels(confidences, self._drawn[rows], top)
        ranked = np.flatnonzero(rows % self._stride == 0)
        thirds, rows = self._rank(confidences[ranked]), rows[ranked]
        for found, some in zip(self._thirds, (labels[ranked], self._wrong[rows]), strict=False):
            of_labels = np.take_along_axis(thirds, some, axis=1)
            found[:, rows] = [(of_labels == third).mean(axis=1) for third in (1, 2)]
        self._thirds[2][:, rows] = [(thirds == third) @ self._frequency for third in (1, 2)]

    def _rank(self, confidences: Floats) -> npt.NDArray[np.int8]:
        """(B, C) third of each label, by confidence and frequency: 2 the least confident; all 0 where one is empty."""
        order = np.argsort(confidences, axis=1)
        share, ordered = np.cumsum(self._frequency[order], axis=1), np.take_along_axis(confidences, order, axis=1)
        share[:, :-1][ordered[:, :-1] == ordered[:, 1:]] = np.inf  # labels of equal confidence are in one third
        share = np.minimum.accumulate(share[:, ::-1], axis=1)[:, ::-1] - 1e-9
        third = (share <= 2 / 3).astype(np.int8) + (share <= 1 / 3)
        third[~((third == 1).any(axis=1) & (third == 2).any(axis=1))] = 0
        found = np.empty_like(third)
        np.put_along_axis(found, order, third, axis=1)
        return found

    def calibrate(
        self, *, before: "ErrorCalibration | None" = None, model_rate: float | None = None
    ) -> "ErrorCalibration":
        """Probabilities that each label is wrong: as in `before`, or by the simulated ones."""
        if before is not None:
            return before.apply(self.given, self.highest)
        missed = float((self.own < self.highest).mean())
        p_error, none_if_wrong = calibrate_scores(
            self.given,
            self._of_wrong,
            self._of_drawn,
            thirds=self._thirds,
            highest=self.highest,
            missed=missed,
            model_rate=model_rate,
        )
        return ErrorCalibration(self.given, p_error, self.highest, none_if_wrong)


def calibrate_scores(
    given: Doubles,
    wrong: Doubles,
    drawn: Doubles,
    *,
    thirds: Doubles,
    highest: Floats,
    missed: float = 0.0,
    model_rate: float | None = None,
) -> tuple[Doubles, Doubles]:
    """The probability that each label is wrong, from scores of given and of simulated wrong labels.

    Rate, share of images of no class and p_error are estimated in turns, each from the others. Simulated labels of
    images that show another class are weighted by the probability that the given label is right, those of images that
    show none by the share of such images. A share x / (e + o + x) of p_error counts as right, with x = `_ODD` times
    `missed`.

    Args:
        given, wrong, drawn: (N,) scores of labels; (N, k) of simulated ones of images of another class, and of none.
        thirds: (3, 2, N) how many of the given, the wrong and all labels of an image are in its middle and its least
            confident third, 0..1; 0 of images that are not ranked.
        highest: (N,) highest confidence of each image.
        missed: share of the given labels that the confidences do not favour.

    Returns:
        (N,) p_error, which never rises with the score; and (N,) the probability that an image whose label is wrong
        shows no class, which never rises with the highest confidence.
    """
    count, each = wrong.shape
    values, position = np.unique(np.concatenate([given, wrong.ravel(), drawn.ravel()]), return_inverse=True)
    own, of_wrong, of_drawn = np.split(position, [count, count + wrong.size])
    given_amounts = np.bincount(own, minlength=len(values)).astype(np.float64)
    low, random_shares, random_rate, random_error = measure_random(thirds, highest)
    p_error, none = np.zeros((2, count))

    def amounts(positions: Ids, weights: Doubles) -> Doubles:
        weights = np.repeat(weights * (count / weights.sum() / each), each)
        return np.asarray(np.bincount(positions, weights=weights, minlength=len(values)))

    for _ in range(_ROUNDS):
        is_right = (1 - p_error).clip(_EPSILON)
        simulated = amounts(of_wrong, is_right)
        rate = estimate_rate(simulated, given_amounts, model_rate=model_rate)
        if_wrong = rate * float(is_right @ low[1]) / max(float(is_right @ low[2]), _EPSILON)
        none, none_rate = estimate_none(random_shares, if_wrong, rate, random_rate=random_rate, error=random_error)
        rates = rate + none_rate
        if rates <= 0:
            return np.zeros(count), none
        simulated *= rate / rates
        if none_rate:
            simulated += none_rate / rates * amounts(of_drawn, none)
        p_error = fit_p_error(given_amounts, simulated, rates)[own]
    return p_error * rates / (rates + _ODD * missed), none / np.maximum(none + rate, _EPSILON)


def estimate_rate(simulated: Doubles, given: Doubles, *, model_rate: float | None) -> float:
    """The noise rate e of labels of another class, from (S,) amounts of simulated and given labels at ascending scores.

    Wrong labels are a share e of all and score as the simulated ones, so e G(t) <= F(t) for every score t, with F and
    G how many given and simulated labels score below t: e is at most the least F(t) / G(t), t from the lowest tenth of
    the simulated scores on. Where no given label scores that low, e is 0. A large bound is moved towards `model_rate`.
    """
    simulated_below, given_below = np.cumsum(simulated), np.cumsum(given)
    least = float(np.clip(_MANY / given_below[-1], _SHARES[0], _MOST_OF_FEW))
    shares = np.linspace(least, _SHARES[1], 33)
    positions = np.searchsorted(simulated_below, shares * simulated_below[-1]).clip(max=len(simulated) - 1)
    below = given_below[positions]
    below = below + np.sqrt(below) / 2  # the lowest of many random values is too low
    bound = min(1.0, float((below / np.maximum(simulated_below[positions], _EPSILON)).min()))
    if model_rate is None or bound <= 0:
        return bound
    weight = float(np.clip((bound - _BOUND_ALONE) / (_HALFWAY - _BOUND_ALONE), 0, 1)) / 2
    return float(bound ** (1 - weight) * model_rate**weight)


def measure_random(thirds: Doubles, highest: Floats) -> tuple[Doubles, Doubles, float, float]:
    """Share of labels that look random: among the least confident third, less d times the middle third.

    With t, m and l how often given labels are in the three thirds, d = (m - l) / (t - m) is how fast right labels
    become rarer from third to third; random ones do not. So the difference is 0 of right labels. Of random ones it is
    that of all labels, by which it is divided.

    Returns:
        (3, N) the differences of the given, the wrong and all labels; (N,) the shares of labels that look random by the
        highest confidence; their mean; and its standard error.
    """
    from scipy.optimize import isotonic_regression  # takes long to load, and is not of the base

    middle, least = thirds.sum(axis=2).T
    ranked = float((thirds[2, 1] > 0).sum())
    often = (ranked - middle[0] - least[0]) / max(ranked - middle[2] - least[2], _EPSILON)
    seldom, hardly = middle[0] / max(middle[2], _EPSILON), least[0] / max(least[2], _EPSILON)
    decay = float(np.clip((seldom - hardly) / max(often - seldom, _EPSILON), 0, _MOST_DECAY))
    low = thirds[:, 1] - decay * thirds[:, 0]
    _, as_confident = np.unique(highest, return_inverse=True)
    of_all = np.bincount(as_confident, weights=low[2]).clip(_EPSILON)
    rates = np.bincount(as_confident, weights=low[0]) / of_all
    shares = isotonic_regression(rates, weights=of_all, increasing=False).x[as_confident]
    error = float(np.sqrt(least[0] + decay**2 * middle[0]) / of_all.sum())
    return low, shares, float(low[0].sum() / of_all.sum()), error


def estimate_none(
    shares: Doubles, if_wrong: float, rate: float, *, random_rate: float, error: float
) -> tuple[Doubles, float]:
    """(N,) probabilities o_i that an image shows no class, and their mean o, from shares of labels that look random.

    L = o L_h + e L_g, with L, L_h and L_g how often given labels, random ones and those of another class look random:
    o = (L - e L_g) / L_h, of each image by its highest confidence, and lowered by one standard error in the mean. The
    images of the highest confidences show some class, which e L_g / L_h = `if_wrong` therefore reaches at least.
    """
    if_wrong = max(if_wrong, float(np.quantile(shares, 1 - _SHOW_ONE)))
    none = (shares - if_wrong).clip(0, 1)
    none_rate = min(random_rate - if_wrong, float(none.mean()), 1 - rate) - error
    if none_rate <= 0 or random_rate > _MOST_RANDOM:
        return np.zeros(len(shares)), 0.0
    return none * (none_rate / none.mean()), none_rate


def fit_p_error(given: Doubles, simulated: Doubles, rates: float) -> Doubles:
    """(S,) p_error at ascending scores, from the amounts of given and simulated labels there, N of either.

    With f and g their densities and e + o the share of wrong labels, p_error(s) = (e + o) g(s) / f(s). Isotonic
    regression fits the share q = g / (f + g) of simulated ones, which falls with the score, so that
    p_error = (e + o) q / (1 - q).
    """
    from scipy.optimize import isotonic_regression  # takes long to load, and is not of the base

    total = np.maximum(given + simulated, _EPSILON)  # values that only labels of a kind without a share have
    parts = isotonic_regression(simulated / total, weights=total, increasing=False).x
    fitted: Doubles = np.minimum(1, rates * parts / np.maximum(1 - parts, _EPSILON))
    return fitted


@dataclass(frozen=True, slots=True)
class ErrorCalibration:
    """Calibration before any decision: scores of labels and of suggestions, with their probabilities.

    Once people have decided the labels of the lowest scores, simulated noise cannot calibrate the others: on groceries
    and cars a new calibration then found half of the wrong labels or none; the one from before still held.
    """

    scores: Doubles  # (N,) of `score_labels`
    p_error: Doubles  # (N,) probability of a label error
    highest: Floats  # (N,) highest confidence of each image
    none_if_wrong: Doubles  # (N,) probability that an image whose label is wrong shows none of the labels
    suggested: Doubles = field(default_factory=lambda: np.empty(0))  # (K,) ascending confidences of suggested labels
    # (K,) probabilities, if the label is wrong, that the suggested one is right, and that the image shows no label.
    p_right: Doubles = field(default_factory=lambda: np.empty(0))
    p_none: Doubles = field(default_factory=lambda: np.empty(0))
    none_share: float = 0.0  # share of wrong labels whose image shows none of the labels
    look_alikes: float | None = None  # share of simulated errors between look-alike labels that would be called wrong

    @property
    def p_no_class(self) -> Doubles:
        """(N,) probability that an image shows none of the labels."""
        return self.p_error * self.none_if_wrong

    def read(self, scores: Doubles) -> Doubles:
        """p_error of other scores, of the same shape, by interpolation."""
        order = np.argsort(self.scores)  # equal ones have equal values
        return np.interp(scores, self.scores[order], self.p_error[order])

    def apply(self, scores: Doubles, highest: Floats) -> "ErrorCalibration":
        """Calibration of other scores, by interpolation."""
        order = np.argsort(self.highest)
        none_if_wrong = np.interp(highest, self.highest[order], self.none_if_wrong[order])
        return replace(self, scores=scores, p_error=self.read(scores), highest=highest, none_if_wrong=none_if_wrong)

    def divide(self, p_error: Doubles, confidences: Floats) -> tuple[Doubles, Doubles]:
        """(N,) probabilities that the suggested label is right, and that the image shows none of the labels."""
        right, none = (np.interp(confidences, self.suggested, values) for values in (self.p_right, self.p_none))
        none = np.maximum(none, self.none_if_wrong)
        return p_error * np.minimum(right, 1 - none), p_error * none


def estimate_p_error(
    confidences: Floats, labels: Labels, *, before: ErrorCalibration | None = None
) -> tuple[ErrorCalibration, NoiseModel]:
    """Scores of (N,) labels with the probabilities that they are wrong, and the noise model of the simulation.

    The (N, C) confidences of an image are from other images. With a calibration from `before`, nothing is simulated.
    """
    model, each = fit_noise_model(confidences, labels), count_simulated(len(labels)) if before is None else 0
    wrong = simulate_labels(labels, model.transitions, each=each)
    scores = LabelScores(labels, wrong, draw_labels(labels, each=each), count=confidences.shape[1])
    for rows in row_slices(len(labels)):
        scores.add(np.arange(len(labels))[rows], confidences[rows])
    return scores.calibrate(before=before, model_rate=model.noise_rate), model


def row_slices(count: int) -> Iterator[slice]:
    """Slices of at most `_ROWS_AT_ONCE` rows."""
    return (slice(start, start + _ROWS_AT_ONCE) for start in range(0, count, _ROWS_AT_ONCE))
