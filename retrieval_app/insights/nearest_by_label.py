"""The nearest other row of the same label and of another one, for every row, with and without its duplicates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.arrays import Floats, Ids, Labels, Vectors
from index.progress import Progress
from index.threads import multiplying_workers
from index.vectors.exact import search_labels


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
        groups: (N,) int64; rows of one group are duplicates.
        progress: told (done, total) of the rows that are asked for.
    """
    with multiplying_workers():  # in the background: one thread
        found = search_labels(vectors, labels, k=1, asked=asked, progress=progress)
        same, different = (nearest.cosines[:, 0] for nearest in found)
        same_apart, different_apart = same.copy(), different.copy()
        repeated = np.flatnonzero(np.isin(groups[asked], _list_repeated(groups)))
        apart = search_labels(vectors, labels, k=1, asked=asked[repeated], groups=groups)
        same_apart[repeated], different_apart[repeated] = (nearest.cosines[:, 0] for nearest in apart)
    return NearestByLabel(same, different, found[1].rows[:, 0], same_apart, different_apart)


def _list_repeated(groups: Ids) -> Ids:
    """The groups of more than one row."""
    values, counts = np.unique(groups, return_counts=True)
    return values[counts > 1]
