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

    `same` is that of the nearest other row of the same label, `different` and `different_row` of another label.
    `same_apart` and `different_apart` are `same` and `different` among the rows of other groups.
    """

    same: Floats
    different: Floats
    different_row: Ids
    same_apart: Floats
    different_apart: Floats


def find_nearest_by_label(
    vectors: Vectors, labels: Labels, asked: Ids, *, groups: Ids, progress: Progress
) -> NearestByLabel:
    """Compare some rows with all.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64.
        asked: (n,) int64 rows.
        groups: (N,) int64; rows of one group are copies.
        progress: told (done, total) of the rows that are asked for.
    """
    order = np.argsort(labels, kind="stable")  # rows of a label stand together, and every side is a slice
    ordered, places_of = vectors[order], np.empty_like(order)
    places_of[order] = np.arange(len(order))
    sides = np.searchsorted(labels[order], [labels[asked], labels[asked] + 1])  # (2, n) bounds of their own label
    by_label = np.argsort(sides[0], kind="stable")
    ends = np.flatnonzero(np.diff(sides[0, by_label])) + 1
    copies = _find_places_of_copies(groups, asked, places_of)
    cosines = np.full((4, len(asked)), -np.inf, dtype=np.float32)
    places = np.full((4, len(asked)), NO_ID, dtype=np.int64)
    size, done = max(1, _PRODUCTS_AT_ONCE // max(1, len(order))), 0
    for group in np.split(by_label, ends):
        for first in range(0, len(group), size):
            rows = group[first : first + size]
            done += len(rows)
            products = vectors[asked[rows]] @ ordered.T
            products[np.arange(len(rows)), places_of[asked[rows]]] = -np.inf
            start, end = sides[:, rows[0]].tolist()
            _take_both(products, (start, end), cosines[:2], places[:2], rows)
            cosines[2:, rows] = cosines[:2, rows]
            repeated = np.flatnonzero([int(row) in copies for row in rows])
            if len(repeated):
                rows, products = rows[repeated], products[repeated]
                for place, row in enumerate(rows.tolist()):
                    products[place, copies[row]] = -np.inf
                cosines[2:, rows] = -np.inf
                _take_both(products, (start, end), cosines[2:], places[2:], rows)
            progress(done, len(asked))
    found = np.where(places[1] == NO_ID, NO_ID, order[places[1]])
    return NearestByLabel(
        same=cosines[0],
        different=cosines[1],
        different_row=found,
        same_apart=cosines[2],
        different_apart=cosines[3],
    )


def _find_places_of_copies(groups: Ids, asked: Ids, places_of: Ids) -> dict[int, Ids]:
    """The places of the rows of its group, by the number of each of the rows that ask and are not alone."""
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    of_group = {int(groups[part[0]]): places_of[part] for part in parts if len(part) > 1}
    return {i: of_group[group] for i, group in enumerate(groups[asked].tolist()) if group in of_group}


def _take_both(products: Floats, own: tuple[int, int], cosines: Floats, places: Ids, rows: Ids) -> None:
    """Let rows have the best of the columns of their own label, and of all others."""
    start, end = own
    _take_best(products, start, end, cosines[0], places[0], rows)
    _take_best(products, 0, start, cosines[1], places[1], rows)
    _take_best(products, end, products.shape[1], cosines[1], places[1], rows)


def _take_best(products: Floats, start: int, end: int, cosines: Floats, places: Ids, rows: Ids) -> None:
    """Let rows have the best of some columns of their products where it is better than what they have."""
    if start == end:
        return
    best = products[:, start:end].argmax(axis=1)
    found = products[np.arange(len(rows)), start + best]
    better = found > cosines[rows]
    cosines[rows[better]], places[rows[better]] = found[better], start + best[better]
