"""The nearest images with the same label, and with another one: exact, blocked, ties by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.exact import NO_ID, Floats, Ids, search, search_blocks


@dataclass(frozen=True, slots=True)
class Nearest:
    """The k nearest of every row: `cosines` (N, k) float32 falling and `rows` (N, k) int64.

    Where there are fewer than k, `NO_ID` with -inf fills up.
    """

    cosines: Floats
    rows: Ids

    @classmethod
    def none(cls, count: int, k: int) -> Nearest:
        """Nobody near anybody."""
        return cls(np.full((count, k), -np.inf, dtype=np.float32), np.full((count, k), NO_ID, dtype=np.int64))


def find_agreeing(unit: Floats, labels: Ids, *, k: int) -> Nearest:
    """The nearest others with the same label.

    Args:
        unit: (N, D) float32 unit rows.
        labels: (N,) int64.
        k: how many, at least 1.
    """
    found = Nearest.none(len(labels), k)
    for rows in rows_by_value(labels):
        vectors = unit[rows]
        found.cosines[rows], found.rows[rows] = search(vectors, vectors, k=k, gallery_ids=rows, query_ids=rows)
    return found


def find_disagreeing(unit: Floats, labels: Ids, *, k: int) -> Nearest:
    """The nearest with another label; arguments as of `find_agreeing`.

    Among the size + k - 1 nearest of an image whose class has `size` images, k have another label. Classes of about
    the same size are asked together, so that a small one need not look as far as the largest.
    """
    found = Nearest.none(len(labels), k)
    everything = np.arange(len(labels), dtype=np.int64)
    sizes = np.bincount(labels)[labels]
    for asked in rows_by_value(np.ceil(np.log2(sizes)).astype(np.int64)):
        width = min(len(labels), int(sizes[asked].max()) + k - 1)
        for part, cosines, ids in search_blocks(
            unit[asked], unit, k=width, gallery_ids=everything, query_ids=asked
        ):
            rows = asked[part]
            usable = (ids != NO_ID) & (labels[ids] != labels[rows][:, None])
            first = np.argsort(~usable, axis=1, kind="stable")[:, :k]
            chosen = np.take_along_axis(usable, first, axis=1)
            kept = first.shape[1]
            found.cosines[rows, :kept] = np.where(chosen, np.take_along_axis(cosines, first, axis=1), -np.inf)
            found.rows[rows, :kept] = np.where(chosen, np.take_along_axis(ids, first, axis=1), NO_ID)
    return found


def rows_by_value(values: Ids) -> list[Ids]:
    """The sorted rows of every value in (N,) int64, by value."""
    order = np.argsort(values, kind="stable").astype(np.int64)
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else []
