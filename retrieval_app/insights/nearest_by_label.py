"""The nearest other row of the same label and of another one, for every row: exactly, and a block at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.embedder import Vectors
from index.exact import NO_ID, Floats, Ids
from index.metrics import Labels
from index.progress import Progress

_PRODUCTS_AT_ONCE = 1 << 24  # 64 MB


@dataclass(frozen=True, slots=True)
class NearestByLabel:
    """Of n rows: (n,) float32 cosines, -inf where there is none, and (n,) int64 rows, `NO_ID` there.

    `same` and `same_row` are those of the nearest other row of the same label, `different` and `different_row` of
    another label.
    """

    same: Floats
    same_row: Ids
    different: Floats
    different_row: Ids


def find_nearest_by_label(vectors: Vectors, labels: Labels, asked: Ids, *, progress: Progress) -> NearestByLabel:
    """Compare some rows with all.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64.
        asked: (n,) int64 rows.
        progress: told (done, total) of the rows that are asked for.
    """
    order = np.argsort(labels, kind="stable")  # rows of a label stand together, and every side is a slice
    ordered, places_of = vectors[order], np.empty_like(order)
    places_of[order] = np.arange(len(order))
    sides = np.searchsorted(labels[order], [labels[asked], labels[asked] + 1])  # (2, n) bounds of their own label
    by_label = np.argsort(sides[0], kind="stable")
    ends = np.flatnonzero(np.diff(sides[0, by_label])) + 1
    cosines = np.full((2, len(asked)), -np.inf, dtype=np.float32)
    places = np.full((2, len(asked)), NO_ID, dtype=np.int64)
    size, done = max(1, _PRODUCTS_AT_ONCE // max(1, len(order))), 0
    for group in np.split(by_label, ends):
        for first in range(0, len(group), size):
            rows = group[first : first + size]
            products = vectors[asked[rows]] @ ordered.T
            products[np.arange(len(rows)), places_of[asked[rows]]] = -np.inf
            start, end = sides[:, rows[0]].tolist()
            _take_best(products, start, end, cosines[0], places[0], rows)
            _take_best(products, 0, start, cosines[1], places[1], rows)
            _take_best(products, end, len(order), cosines[1], places[1], rows)
            done += len(rows)
            progress(done, len(asked))
    found = np.where(places == NO_ID, NO_ID, order[places])
    return NearestByLabel(cosines[0], found[0], cosines[1], found[1])


def _take_best(products: Floats, start: int, end: int, cosines: Floats, places: Ids, rows: Ids) -> None:
    """Let rows have the best of some columns of their products where it is better than what they have."""
    if start == end:
        return
    best = products[:, start:end].argmax(axis=1)
    found = products[np.arange(len(rows)), start + best]
    better = found > cosines[rows]
    cosines[rows[better]], places[rows[better]] = found[better], start + best[better]
