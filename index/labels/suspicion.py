"""How likely each label is wrong, what the image shows then, and which labels stand in place of which.

An image's confidences are made without it, so they would be the same had it another label. Labels that are wrong can
therefore be planted by the thousand, for nothing: give an image a label that a mistake would have given it, and read
its confidence. (Proteomics reckons false discoveries by decoys in the same way: Elias and Gygi, 2007.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Labels
from index.labels.mistakes import Mistakes, fit_mistakes

PLANTED = 3  # mistakes for each image, or more where there are few images
_LEAST_PLANTED = 20_000
_MOST_EACH = 64
# Of planted mistakes the most suspicious tenth to nine tenths are looked at; of few images more, as hardly one of their
# mistakes would be as suspicious as that tenth.
_SHARES = (0.1, 0.9)
_MANY, _MOST_OF_FEW = 60, 0.6
_ROUNDS = 3
# Up to here the bound is taken as it is, and from there on halfway to the likeliest share: the bound stays under the
# share where mistakes look like what is there, the likeliest is over it where there are hardly any.
_BOUND_ALONE, _HALFWAY = 0.05, 0.15
# Of labels that the confidences do not favour, those that are right and yet look as wrong as any: so many do where all
# are right.
_ODD = 0.01
_LEAST = 1e-6

Doubles = npt.NDArray[np.float64]
SHOWN = 4  # likeliest labels of an image that are kept: its own and three others
_ROWS_AT_ONCE = 4096


def planted_each(count: int) -> int:
    """How many mistakes are planted for each of so many images."""
    return int(np.clip(-(-_LEAST_PLANTED // max(count, 1)), PLANTED, _MOST_EACH))


def plant_labels(labels: Labels, instead: Doubles, *, each: int) -> Labels:
    """(N, each) labels that (N,) images would get by mistake, by (C, C) chances; always the same ones."""
    generator, found = np.random.default_rng(0), np.empty((len(labels), each), dtype=np.int64)
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        summed = np.cumsum(instead[label])
        drawn = generator.random((len(rows), each)) * summed[-1]
        found[rows] = np.searchsorted(summed, drawn, side="right").clip(max=len(summed) - 1)
    return found


def score_labels(confidences: Floats, labels: Labels) -> Doubles:
    """How well labels stand: log p(y) - 1/4 log of the highest p(c) over c other than y.

    Args:
        confidences: (B, C) float32.
        labels: (B, k) int64.

    Returns:
        (B, k); the lower, the more suspicious.
    """
    own = np.take_along_axis(confidences, labels, axis=1)
    two = np.partition(confidences, -2, axis=1)[:, -2:]
    other = np.where(own >= two[:, 1:], two[:, :1], two[:, 1:])
    return np.asarray(
        np.log(np.maximum(own, _LEAST, dtype=np.float64)) - np.log(np.maximum(other, _LEAST, dtype=np.float64)) / 4
    )


def judge_by_planted(
    given: Doubles, planted: Doubles, *, missed: float = 0.0, likeliest: float | None = None
) -> Doubles:
    """The chance that each label is wrong.

    With f the scores of given labels, g those of planted mistakes (which count by how far the label of their image is
    believed), and e the share of wrong labels, f is a mixture in which e g is the wrong ones, so

        wrong(s) = e g(s) / f(s),     e <= min over t of F(t) / G(t)

    g / f by isotonic regression; of that, o / (e + o) is taken for right, with o = `_ODD` times those missed. It is 0
    where no given label looks as the tenth of the planted mistakes does that looks worst. Mistakes that people make on
    images that could be either look better than planted ones, and are not all counted.

    Args:
        given: (N,) scores of `score_labels`.
        planted: (N, k) of mistakes planted in the images.
        missed: share of the given labels that the confidences do not favour.
        likeliest: share of mistakes by another estimate, towards which the bound is moved.

    Returns:
        (N,) float64 in 0..1; it never rises with the score.
    """
    from scipy.optimize import isotonic_regression  # takes long to load, and is not of the base

    count, each = planted.shape
    order = np.argsort(np.concatenate([given, planted.ravel()]), kind="stable")
    is_planted = order >= count
    _, place = np.unique(np.concatenate([given, planted.ravel()])[order], return_inverse=True)
    of_planted = np.repeat(np.arange(count), each)
    wrong = np.zeros(count)
    for _ in range(_ROUNDS):
        believed = (1 - wrong).clip(_LEAST)[of_planted]
        believed *= count / believed.sum()
        counts = np.concatenate([np.ones(count), believed])[order]
        amounts: Doubles = np.bincount(place, weights=counts).astype(np.float64)
        planted_amounts: Doubles = np.bincount(place, weights=counts * is_planted).astype(np.float64)
        share = _share_of_mistakes(planted_amounts, amounts - planted_amounts, likeliest=likeliest)
        parts = isotonic_regression(planted_amounts / amounts, weights=amounts, increasing=False).x
        ratio = parts / np.maximum(1 - parts, _LEAST)
        chance = np.minimum(1, share * ratio)[place]
        wrong[order[~is_planted]] = chance[~is_planted]
    return wrong * share / max(share + _ODD * missed, _LEAST)


def _share_of_mistakes(planted: Doubles, given: Doubles, *, likeliest: float | None) -> float:
    """The share of wrong labels, from (S,) amounts of planted and given ones at rising scores, N of either."""
    planted_below, given_below = np.cumsum(planted), np.cumsum(given)
    least = float(np.clip(_MANY / given_below[-1], _SHARES[0], _MOST_OF_FEW))
    shares = np.linspace(least, _SHARES[1], 33)
    places = np.searchsorted(planted_below, shares * planted_below[-1]).clip(max=len(planted) - 1)
    below = given_below[places]
    below = below + np.sqrt(below) / 2  # as the lowest of many that vary by chance is too low
    bound = min(1.0, float((below / np.maximum(planted_below[places], _LEAST)).min()))
    if likeliest is None or bound <= 0:
        return bound
    weight = float(np.clip((bound - _BOUND_ALONE) / (_HALFWAY - _BOUND_ALONE), 0, 1)) / 2
    return float(bound ** (1 - weight) * likeliest**weight)


@dataclass(frozen=True, slots=True)
class Chances:
    """Which chance of being wrong goes with which score, as found of labels that nobody had looked at yet.

    Once the most suspicious labels are settled, what is left can no longer be compared with planted mistakes: those
    that look worst are gone. (Found anew then, half of the wrong labels or none were said to be left, on groceries and
    cars; what the scores meant before still held.)

    Attributes:
        scores: (N,) of `score_labels`.
        p_error: (N,) probabilities, which never rise with the score.
    """

    scores: Doubles
    p_error: Doubles

    def of(self, scores: Doubles) -> Doubles:
        """(N,) chances of labels of such scores."""
        order = np.argsort(self.scores)
        return np.interp(scores, self.scores[order], self.p_error[order])


@dataclass(frozen=True, slots=True)
class Judgement:
    """What confidences say of N labels.

    Attributes:
        p_error: (N,) float64 probability that each label is wrong.
        best: (N, 4) int64 what the image shows, the likeliest first; `NO_ID` where there are fewer labels.
        chances: (N, 4) float64 of these; of its own label 1 - p_error, of all labels together 1.
        rates: (C,) float64 estimated share of each label's images whose label is wrong.
        pairs: (label, label shown, images) of labels that stand in place of others, with how many images that is.
        scores: (N,) float64 of `score_labels`, which `p_error` was found by.
        own: (N,) float32 confidence in the label, from all rows but this one and those left out with it.
        highest: (N,) float32 highest confidence in any label.
    """

    p_error: Doubles
    best: Ids
    chances: Doubles
    rates: Doubles
    pairs: tuple[tuple[int, int, float], ...]
    scores: Doubles
    own: Floats
    highest: Floats

    @property
    def calibration(self) -> Chances:
        """What the scores of the labels mean."""
        return Chances(self.scores, self.p_error)

    def others(self, row: int, *, label: int) -> list[tuple[int, float]]:
        """(label, chance that it is what is shown) of the likeliest labels but a row's own, best first, three at most.

        Those without any chance are left out.
        """
        pairs = zip(self.best[row].tolist(), self.chances[row].tolist(), strict=True)
        others = [(other, chance) for other, chance in pairs if other not in (NO_ID, label) and chance > 0]
        return others[: SHOWN - 1]


def estimate_p_error(
    confidences: Floats, labels: Labels, *, before: Chances | None = None
) -> tuple[Chances, Mistakes]:
    """Score and chance that it is wrong of each label, and the mistakes that were planted to tell.

    Args:
        confidences: (N, C) float32 in 0..1, rows sum to 1; of each image from other images.
        labels: (N,) int64 in 0..C-1.
        before: what scores meant before some of the labels were settled; None plants mistakes to find out.
    """
    mistakes = fit_mistakes(confidences, labels)
    if before is not None:
        scores = np.concatenate(
            [score_labels(confidences[rows], labels[rows, None])[:, 0] for rows in _slices(len(labels))]
        )
        return Chances(scores, before.of(scores)), mistakes
    wrong_labels = plant_labels(labels, mistakes.instead, each=planted_each(len(labels)))
    given, planted, missed = np.empty(len(labels)), np.empty(wrong_labels.shape), 0
    for rows in _slices(len(labels)):
        given[rows] = score_labels(confidences[rows], labels[rows, None])[:, 0]
        planted[rows] = score_labels(confidences[rows], wrong_labels[rows])
        missed += int((confidences[rows].argmax(axis=1) != labels[rows]).sum())
    wrong = judge_by_planted(given, planted, missed=missed / len(labels), likeliest=mistakes.share)
    return Chances(given, wrong), mistakes


def suspect_labels(confidences: Floats, labels: Labels, *, before: Chances | None = None) -> Judgement:
    """What (N, C) confidences say of (N,) labels; arguments as those of `estimate_p_error`."""
    found, mistakes = estimate_p_error(confidences, labels, before=before)
    wrong = found.p_error
    count = confidences.shape[1]
    best, chances = _nothing_shown(len(labels))
    by_label = np.zeros((count, count))
    for rows in _slices(len(labels)):
        given, own = labels[rows], np.arange(len(labels[rows]))
        shown = wrong[rows, None] * mistakes.shown_if_wrong(confidences[rows], given)
        np.add.at(by_label, given, shown)
        shown[own, given] = 1 - wrong[rows]
        order = np.argsort(-shown, axis=1, kind="stable")[:, :SHOWN]
        best[rows, : order.shape[1]] = order
        chances[rows, : order.shape[1]] = np.take_along_axis(shown, order, axis=1)
    pairs = tuple((int(i), int(j), float(by_label[i, j])) for i, j in np.argwhere(by_label > 0))
    confident, rates = confidences[np.arange(len(labels)), labels], _rates(wrong, labels, count=count)
    return Judgement(wrong, best, chances, rates, pairs, found.scores, confident, confidences.max(axis=1))


def suspect_evenly(
    found: Chances, labels: Labels, *, own: Floats, highest: Floats, best: Ids, confidences: Floats, count: int
) -> Judgement:
    """As `suspect_labels` where N x C confidences are too many to hold: an image whose label is wrong shows the first.

    Args:
        found: score of each label, and chance that it is wrong.
        own, highest: (N,) confidence in each label, and in any.
        best, confidences: (N, s) the labels of the highest confidence, best first, `NO_ID` for none.
        count: C.
    """
    wrong = found.p_error
    is_other = (best != NO_ID) & (best != labels[:, None])
    left = np.maximum(1 - own, np.finfo(np.float32).tiny)[:, None]
    others = np.where(is_other, wrong[:, None] * np.minimum(confidences / left, 1), -1.0)
    all_labels = np.concatenate([np.where(is_other, best, NO_ID), labels[:, None]], axis=1)
    all_chances = np.concatenate([others, 1 - wrong[:, None]], axis=1)
    order = np.argsort(-all_chances, axis=1, kind="stable")[:, :SHOWN]
    shown, chances = _nothing_shown(len(labels))
    shown[:, : order.shape[1]] = np.take_along_axis(all_labels, order, axis=1)
    chances[:, : order.shape[1]] = np.take_along_axis(all_chances, order, axis=1).clip(min=0)
    first = np.where(is_other.any(axis=1), best[np.arange(len(best)), is_other.argmax(axis=1)], NO_ID)
    pairs, place = np.unique(np.stack([labels, first]), axis=1, return_inverse=True)
    amounts = np.bincount(place.ravel(), weights=wrong)
    named = zip(*pairs.tolist(), amounts.tolist(), strict=True)
    kept = tuple((i, j, n) for i, j, n in named if j != NO_ID and n > 0)
    rates = _rates(wrong, labels, count=count)
    return Judgement(wrong, shown, chances, rates, kept, found.scores, own, highest)


def _rates(wrong: Doubles, labels: Labels, *, count: int) -> Doubles:
    images = np.bincount(labels, minlength=count)
    sums = np.bincount(labels, weights=wrong, minlength=count)
    rates: Doubles = np.divide(sums, images, out=np.zeros(count), where=images > 0)
    return rates


def _nothing_shown(count: int) -> tuple[Ids, Doubles]:
    return np.full((count, SHOWN), NO_ID, dtype=np.int64), np.zeros((count, SHOWN))


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS_AT_ONCE) for start in range(0, count, _ROWS_AT_ONCE))
