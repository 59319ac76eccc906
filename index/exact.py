"""Blocked exact search by inner product; the query is removed by id and ties go to the smaller id."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
NO_ID = -1
_BLOCK_NUMBERS = 1 << 24  # of the gallery, held in float64 at once


def search_blocks(
    queries: Floats,
    gallery: Floats,
    *,
    k: int,
    gallery_ids: Ids,
    query_ids: Ids | None = None,
    block_values: int = 1 << 24,
) -> Iterator[tuple[slice, Floats, Ids]]:
    """The k nearest gallery rows of every query, a block of queries at a time; memory is bounded by the block.

    Args:
        queries: (Q, D) float32.
        gallery: (N, D) float32.
        k: neighbours wanted, at least 1.
        gallery_ids: (N,) int64, unique.
        query_ids: (Q,) int64; a gallery row with the query's own id is never returned. None: nothing is removed.
        block_values: similarities held at once.

    Yields:
        (rows, scores, ids): the slice of queries, (B, k) float32 inner products in falling order, and (B, k) int64
        ids, `NO_ID` with score -inf where fewer than k rows exist. Products are summed in float64 and rounded
        once, so that equal vectors tie exactly wherever they stand.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    order = None  # columns stand in id order: a stable sort then breaks ties by id
    if (np.diff(gallery_ids) < 0).any():
        order = np.argsort(gallery_ids, kind="stable")
    columns, ids = _Columns(gallery, order), gallery_ids if order is None else gallery_ids[order]
    rows_at_once = max(1, block_values // max(1, len(ids)))
    for start in range(0, len(queries), rows_at_once):
        rows = slice(start, min(start + rows_at_once, len(queries)))
        scores = columns.multiply(queries[rows])
        if query_ids is not None and len(ids):
            position = np.searchsorted(ids, query_ids[rows]).clip(max=len(ids) - 1)
            own = ids[position] == query_ids[rows]
            scores[np.flatnonzero(own), position[own]] = -np.inf
        yield rows, *_top(scores, ids, k=k)


def search(
    queries: Floats, gallery: Floats, *, k: int, gallery_ids: Ids, query_ids: Ids | None = None
) -> tuple[Floats, Ids]:
    """All of `search_blocks` at once: (Q, k) float32 scores and (Q, k) int64 ids."""
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    ids = np.full((len(queries), k), NO_ID, dtype=np.int64)
    for rows, block_scores, block_ids in search_blocks(
        queries, gallery, k=k, gallery_ids=gallery_ids, query_ids=query_ids
    ):
        scores[rows], ids[rows] = block_scores, block_ids
    return scores, ids


class _Columns:
    """The gallery in an order (None: as it stands), cast to float64 a block at a time; one block is cast once."""

    def __init__(self, gallery: Floats, order: Ids | None) -> None:
        self._gallery, self._order = gallery, order
        size = max(1, _BLOCK_NUMBERS // max(1, gallery.shape[1]))
        self._blocks = [slice(start, start + size) for start in range(0, len(gallery), size)]
        self._only = self._cast(self._blocks[0]) if len(self._blocks) == 1 else None

    def multiply(self, queries: Floats) -> Floats:
        """(B, N) float32 inner products with (B, D) queries, summed in float64 and rounded once."""
        exact, scores = queries.astype(np.float64), np.empty((len(queries), len(self._gallery)), dtype=np.float32)
        for block in self._blocks:
            scores[:, block] = exact @ (self._cast(block) if self._only is None else self._only)
        return scores

    def _cast(self, block: slice) -> npt.NDArray[np.float64]:
        return self._gallery[block if self._order is None else self._order[block]].T.astype(np.float64)


def _top(scores: Floats, ids: Ids, *, k: int) -> tuple[Floats, Ids]:
    """The k best of every row of (B, N) scores whose columns stand in the order of (N,) ids."""
    count = scores.shape[1]
    best_scores = np.full((len(scores), k), -np.inf, dtype=np.float32)
    best_ids = np.full((len(scores), k), NO_ID, dtype=np.int64)
    if not count:
        return best_scores, best_ids
    kept = min(k, count)
    if kept < count // 4:  # worth a partition before the sort; keep every score that ties with the k-th
        threshold = -np.partition(-scores, kept - 1, axis=1)[:, kept - 1]
        for row, bound in enumerate(threshold):
            columns = np.flatnonzero(scores[row] >= bound)
            chosen = columns[np.argsort(-scores[row, columns], kind="stable")[:kept]]
            best_scores[row, :kept], best_ids[row, :kept] = scores[row, chosen], ids[chosen]
    else:
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
        best_scores[:, :kept], best_ids[:, :kept] = np.take_along_axis(scores, chosen, axis=1), ids[chosen]
    best_ids[np.isneginf(best_scores)] = NO_ID
    return best_scores, best_ids
