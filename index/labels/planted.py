"""Chances from planted mistakes: how labels that are surely wrong would look, beside how the given ones look.

An image's confidences are made without it, so they would be the same had it another label. Labels that are wrong can
therefore be planted by the thousand, for nothing: give an image a label that a mistake would have given it, and read
its confidence. (Proteomics reckons false discoveries by decoys in the same way: Elias and Gygi, 2007.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Labels

Doubles = npt.NDArray[np.float64]
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
