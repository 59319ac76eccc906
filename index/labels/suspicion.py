"""How likely each label is wrong, and which labels stand in place of which, from leave-one-out confidences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Labels

Doubles = npt.NDArray[np.float64]
_FIRST_RATE = 0.3  # of wrong labels, where the estimate begins
# More rounds give overlapping classes to each other: on 5,398 photos of clothes with 10 % of the labels made wrong, the
# estimate is .14 after 3 rounds and .46 after 30.
_ROUNDS = 3
# Images that every class is taken to have with their right label beside those seen: what leaks from thousands of
# images into a class of seven would otherwise be most of it, and every odd image would seem to show that class.
_RIGHT_IMAGES = 5
_LEAST = 1e-4  # probability of a class, so that none is ruled out
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What confidences say of labels.

    Attributes:
        wrong: (N,) float64 chance that each label is wrong. It never rises with the confidence in the label.
        rates: (C,) float64 estimated share of each label's images whose label is wrong.
        pairs: (label, label shown, images) of labels that stand in place of others, with how many images that is.
    """

    wrong: Doubles
    rates: Doubles
    pairs: tuple[tuple[int, int, float], ...]


def suspect_labels(confidences: Floats, labels: Labels) -> Suspicion:
    """Estimate which labels are wrong, and how often, by expectation maximisation.

    A confidence p_i(j) is the chance that image i is labelled j by whoever gave the labels, mistakes included. With
    T_cj the chance that an image of class c gets the label j, p_i = pi_i T, where pi_i are the chances of what the
    image shows; so of an image labelled y,

        q_i(c) = pi_i(c) T_cy / sum_k pi_i(k) T_ky,     T_cj = sum of q_i(c) over y_i = j, rows scaled to 1

    (after a few right images are added to every class).

    The chance that the label is wrong, 1 - q_i(y), is then made a function of p_i(y) alone by isotonic regression:
    confidences rank wrong labels better than their posteriors do, which only set the scale.

    Args:
        confidences: (N, C) float32 in 0..1, rows sum to 1; of each image from other images.
        labels: (N,) int64 in 0..C-1.
    """
    from scipy.optimize import isotonic_regression  # takes long to load, and is not of the base

    rows, count = np.arange(len(labels)), confidences.shape[1]
    mistakes = np.full((count, count), _FIRST_RATE / count) + (1 - _FIRST_RATE) * np.eye(count)
    right = np.empty(len(labels))
    for _ in range(_ROUNDS):
        unmixing = np.linalg.pinv(mistakes)
        by_label = np.zeros((count, count))
        for start in range(0, len(labels), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            shown = np.clip(confidences[part] @ unmixing, _LEAST, None)
            shown *= mistakes.T[labels[part]]
            shown /= shown.sum(axis=1, keepdims=True)  # (B, C): q
            right[part] = shown[np.arange(len(shown)), labels[part]]
            np.add.at(by_label, labels[part], shown)
        mistakes = by_label.T + 0.5 / count + _RIGHT_IMAGES * np.eye(count)
        mistakes /= mistakes.sum(axis=1, keepdims=True)
    _, place, alike = np.unique(confidences[rows, labels], return_inverse=True, return_counts=True)
    doubts = np.bincount(place, weights=1 - right) / alike
    wrong = isotonic_regression(doubts, weights=alike, increasing=False).x[place].clip(0, 1)
    images = np.bincount(labels, minlength=count)
    rates = np.divide(images - by_label.diagonal(), images, out=np.zeros(count), where=images > 0)
    np.fill_diagonal(by_label, 0)
    pairs = ((int(i), int(j), float(by_label[i, j])) for i, j in np.argwhere(by_label > 0))
    return Suspicion(wrong, rates.clip(0, 1), tuple(pairs))


def suspect_evenly(own: Floats, labels: Labels, *, best: Ids, count: int) -> Suspicion:
    """As `suspect_labels`, but with one rate of mistakes, spread evenly: it takes no memory for pairs of labels.

    A confidence p is the chance that an image is labelled so, mistakes included. With a share e of mistakes, spread
    evenly over the C - 1 other labels, and s the chance that the image shows its label,

        p = s (1 - e) + (1 - s) e / (C - 1),     right = s (1 - e) / p,     e = 1 - mean of right

    Args:
        own: (N,) float32 in 0..1, the confidence in each label; N at least 1.
        labels: (N,) int64.
        best: (N, s) int64 likeliest labels, of which the first other one is taken to be shown; `NO_ID` for none.
        count: C, at least 2.
    """
    share, right = _FIRST_RATE, own.astype(np.float64)
    for _ in range(_ROUNDS):
        each = share / (count - 1)
        shows = ((own - each) / max(1 - share - each, _LEAST)).clip(_LEAST, 1)
        right = shows * (1 - share) / (shows * (1 - share) + (1 - shows) * each)
        share = min(1 - float(right.mean()), 0.9 * (count - 1) / count)
    wrong = 1 - right
    images = np.bincount(labels, minlength=count)
    sums = np.bincount(labels, weights=wrong, minlength=count)
    usable = (best != NO_ID) & (best != labels[:, None])
    shown = best[np.arange(len(best)), usable.argmax(axis=1)]
    pairs, place = np.unique(np.stack([labels, shown]), axis=1, return_inverse=True)
    amounts = np.bincount(place.ravel(), weights=wrong)
    return Suspicion(
        wrong,
        np.divide(sums, images, out=np.zeros(count), where=images > 0),
        tuple((i, j, n) for i, j, n in zip(*pairs.tolist(), amounts.tolist(), strict=True) if j != NO_ID),
    )
