"""Photos of one scene by nothing but their embeddings: more alike than photos of other things come to be.

The yardstick are the others: of each photo the nearest with another label, which is of another thing and mostly of
another scene. Photos as alike as a quarter of these are taken to show one scene, whatever their labels.

No embedding tells one scene from things that look alike, so a finding is believed only where it makes a difference
that look-alikes do not: where a photo that may not find its scene errs at least twice as often, by five points or more.
On photos without bursts (5,398 of clothes by different people, 8,144 of cars, Tiny-ImageNet; MobileNetV2's raw
features) it errs 1.1 to 1.2 times as often; on the training photos of the Grocery Store Dataset, several a scene, seven
times: Recall@1 94.4 % falls to 60.3 %.
"""

from __future__ import annotations

import numpy as np

from index.arrays import UNLABELLED, Floats, Ids, Labels, connect_rows
from index.evaluation.nearness import Pairs, draw_same_label, measure
from index.vectors.exact import search_labels

WORTHLESS = 0.05  # of Recall@1, by which scenes make it too good
_YARDSTICK = 0.75  # of the photos have their nearest of another label farther away
_ERRORS = 2.0
_MOST = 10_000  # photos, all pairs of which are multiplied three times
_MOST_PAIRS = 5_000_000
_DRAWN_PAIRS = 20_000
_PRODUCTS_AT_ONCE = 1 << 23


def find_look_alikes(vectors: Floats, labels: Labels) -> Ids | None:
    """(N,) int64, the same for photos that seem to be of one scene; None where nothing points to scenes.

    Nor are scenes looked for among more than 10,000 labelled photos, or where labels are so easily told that most pairs
    of one label would be in one scene.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64, `UNLABELLED` for photos that are of no scene.
    """
    rows = np.flatnonzero(labels != UNLABELLED)
    if len(rows) > _MOST or len(np.unique(labels[rows])) < 2:
        return None
    vectors, known = vectors[rows], labels[rows]
    same, other = (nearest.cosines[:, 0] for nearest in search_labels(vectors, known, k=1))
    level = float(np.quantile(other, _YARDSTICK))
    drawn = draw_same_label(known, count=_DRAWN_PAIRS, seed=0)
    if not len(drawn) or np.median(measure(drawn, vectors)) >= level:
        return None
    pairs = _pair_above(vectors, level)
    if pairs is None:
        return None
    groups = connect_rows(pairs, count=len(rows))
    if (groups[drawn[:, 0]] == groups[drawn[:, 1]]).mean() >= 0.5:
        return None
    same_apart, other_apart = (
        nearest.cosines[:, 0] for nearest in search_labels(vectors, known, k=1, groups=groups)
    )
    asked, asked_apart = np.isfinite(same), np.isfinite(same_apart)
    if not asked_apart.any():
        return None
    errors = float((same < other)[asked].mean())
    errors_apart = float((same_apart < other_apart)[asked_apart].mean())
    if errors_apart < max(_ERRORS * errors, errors + WORTHLESS):
        return None
    found = np.arange(len(labels), dtype=np.int64)
    found[rows] = rows[groups]
    return found


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
