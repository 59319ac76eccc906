"""Photos of one scene by nothing but their embeddings: more alike than photos of other things come to be.

The yardstick are the others: of each photo the nearest with another label, which is of another thing and mostly of
another scene. Photos as alike as a quarter of these are taken to show one scene, whatever their labels; where that
would connect most pairs of a label, as where labels are easily told, those as alike as a tenth or a twentieth.

No embedding tells one scene from things that look alike, so a finding is believed only where it makes a difference
that look-alikes do not: where a photo that may not find its scene errs at least five times as often, by ten points or
more. On photos without bursts (5,398 of clothes by different people, 8,144 of cars, Tiny-ImageNet; MobileNetV2's raw
features, whitened ones, and those of a trained head) it errs 1.0 to 2.0 times as often, and independent random vectors
up to 4.7 times. On the training photos of the Grocery Store Dataset, several a scene, Recall@1 of raw features falls
from 94.4 % to 60.3 %, of whitened ones from 95.1 % to 46.6 %; photos from other days find 48.6 % and 48.0 % among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.arrays import UNLABELLED, Floats, Ids, Labels, connect_rows
from index.evaluation.nearness import Pairs, draw_same_label, measure
from index.vectors.exact import search_labels

WORTHLESS = 0.05  # of Recall@1, by which scenes make it too good
_YARDSTICKS = (0.75, 0.9, 0.95)  # of the photos have their nearest of another label farther away
_MOST_CONNECTED = 0.5  # pairs of a label in one scene; above, it is the label that is told
_ERRORS, _POINTS = 5.0, 0.1
_MOST = 10_000  # photos, all pairs of which are multiplied up to five times
_MOST_PAIRS = 5_000_000
_DRAWN_PAIRS = 20_000
_PRODUCTS_AT_ONCE = 1 << 23


@dataclass(frozen=True, slots=True)
class LookAlikes:
    """(N,) int64 groups of photos that seem to be of one scene, whatever their labels.

    `shots` (N,) int64 are narrower: photos of one label, as alike as a twentieth of the yardsticks. They are for what
    learns from photos, of which the wide groups would leave the odd ones.
    """

    groups: Ids
    shots: Ids


def find_look_alikes(vectors: Floats, labels: Labels) -> LookAlikes | None:
    """Photos that seem to be of one scene; None where nothing points to scenes.

    Nor are scenes looked for among more than 10,000 labelled photos.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64, `UNLABELLED` for photos that are of no scene.
    """
    rows = np.flatnonzero(labels != UNLABELLED)
    if len(rows) > _MOST or len(np.unique(labels[rows])) < 2:
        return None
    vectors, known = vectors[rows], labels[rows]
    same, other = (nearest.cosines[:, 0] for nearest in search_labels(vectors, known, k=1))
    groups = _connect(vectors, known, yardsticks=other)
    if groups is None or not _makes_a_difference(vectors, known, groups, same=same, other=other):
        return None
    close = _pair_above(vectors, float(np.quantile(other, _YARDSTICKS[-1])))
    assert close is not None  # fewer than those of the groups
    shots = connect_rows(close[known[close[:, 0]] == known[close[:, 1]]], count=len(rows))
    found = LookAlikes(*(np.arange(len(labels), dtype=np.int64) for _ in range(2)))
    found.groups[rows], found.shots[rows] = rows[groups], rows[shots]
    return found


def makes_a_difference(errors: float, errors_apart: float) -> bool:
    """Whether searches err so much more often (shares of queries) with scenes apart that look-alikes do not tell it."""
    return errors_apart >= max(_ERRORS * errors, errors + _POINTS)


def _connect(vectors: Floats, labels: Labels, *, yardsticks: Floats) -> Ids | None:
    """(n,) groups of connected photos under the widest yardstick that leaves most pairs of a label apart."""
    drawn = draw_same_label(labels, count=_DRAWN_PAIRS, seed=0)
    typical = np.median(measure(drawn, vectors)) if len(drawn) else np.inf
    for level in np.quantile(yardsticks, _YARDSTICKS).tolist():
        if typical >= level or (pairs := _pair_above(vectors, level)) is None:
            continue
        groups = connect_rows(pairs, count=len(labels))
        if (groups[drawn[:, 0]] == groups[drawn[:, 1]]).mean() < _MOST_CONNECTED:
            return groups
    return None


def _makes_a_difference(vectors: Floats, labels: Labels, groups: Ids, *, same: Floats, other: Floats) -> bool:
    apart = search_labels(vectors, labels, k=1, groups=groups)
    same_apart, other_apart = (nearest.cosines[:, 0] for nearest in apart)
    asked, asked_apart = np.isfinite(same), np.isfinite(same_apart)
    if not asked_apart.any():
        return False
    errors = float((same < other)[asked].mean())
    errors_apart = float((same_apart < other_apart)[asked_apart].mean())
    return makes_a_difference(errors, errors_apart)


def _pair_above(vectors: Floats, level: float) -> Pairs | None:
    """(P, 2) rows with a product above a level; None where they are far too many."""
    parts, found = [], 0
    size = max(1, _PRODUCTS_AT_ONCE // len(vectors))
    for start in range(0, len(vectors), size):
        products = vectors[start : start + size] @ vectors[start:].T
        left, right = np.nonzero(products > level)
        pairs = np.stack([left, right], axis=1)[left < right] + start
        parts.append(pairs.astype(np.int64))
        found += len(pairs)
        if found > _MOST_PAIRS:
            return None
    return np.concatenate(parts)
