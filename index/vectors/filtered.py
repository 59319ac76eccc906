"""Searches of an ANN index for the nearest of those rows that a filter keeps.

What a search without the filter finds near a query tells how many of those there are kept. Where they are enough they
are the answer; else the index looks for kept rows alone, the harder the fewer there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Ids, Vectors
from index.vectors.ann_index import AnnIndex
from index.vectors.stored_rows import Mask, RowSet

_LOOKED = 64  # neighbours, kept by a filter or not, that tell how many of those near a query it keeps; at least
_LEAST_SHARE = (
    0.3  # kept of all rows: from here on the first look is hard enough for the answer where it is typical
)
_SPARE = 1.25  # times that hard
_MOST_RAISED = 16  # times as many candidates as without a filter

IsScanSooner = Callable[[int], bool]  # of an effort: whether scanning what is kept takes no longer


def search_among(
    index: AnnIndex, queries: Vectors, *, effort: int, depth: int, among: RowSet, is_scan_sooner: IsScanSooner
) -> tuple[Ids, Mask]:
    """(Q, c) candidate positions that a filter keeps, and (Q,) bool where a scan must tell instead.

    Args:
        index: of the rows.
        queries: (Q, D) float32.
        effort: that finds the nearest well enough without a filter.
        depth: candidates to be ranked without a filter.
        among: what the filter keeps.
        is_scan_sooner: told how hard the index would have to look.
    """
    near, looked = _look(index, queries, effort=effort, depth=depth, among=among)
    kept = among.mask[near] & (near != NO_ID)
    counts = np.count_nonzero(kept, axis=1)
    needed = effort * near.shape[1] / np.maximum(counts, 0.5)
    is_hard = (counts < depth) | (needed > looked)
    # Farther out the rows lie denser, and scores that are coarse tell them apart less: then all are ranked.
    positions = _keep(near, kept, most=depth if index.has_full_scores else near.shape[1])
    unsure = np.zeros(len(queries), dtype=bool)
    if not np.count_nonzero(is_hard):
        return positions, unsure
    hard = np.flatnonzero(is_hard)
    raised = np.exp2(np.ceil(np.log2(needed[hard]))).astype(np.int64)
    for value in np.unique(raised).tolist():
        group = hard[raised == value]
        if is_scan_sooner(value):
            unsure[group] = True
            continue
        wanted = depth if index.has_full_scores else min(_MOST_RAISED, math.ceil(value / effort)) * depth
        wanted = min(wanted, len(index.rows))
        _, found = index.search(queries[group], k=wanted, effort=min(value, index.most_effort), among=among.bits)
        missing = max(0, wanted - positions.shape[1])
        positions = np.pad(positions, ((0, 0), (0, missing)), constant_values=NO_ID)
        positions[group] = NO_ID
        positions[group, :wanted] = found
    return positions, unsure


def _look(index: AnnIndex, queries: Vectors, *, effort: int, depth: int, among: RowSet) -> tuple[Ids, int]:
    """(Q, n) positions found without the filter, and how hard was looked for them."""
    looked, share = max(_LOOKED, depth), len(among) / len(among.mask)
    if share >= _LEAST_SHARE:
        effort, looked = math.ceil(_SPARE * effort / share), max(looked, math.ceil(_SPARE * depth / share))
    if index.kind.keeps_effort:
        looked = effort = max(looked, effort)
    effort, looked = min(effort, index.most_effort), min(looked, len(index.rows))
    return index.search(queries, k=looked, effort=effort)[1], effort


def _keep(near: Ids, kept: npt.NDArray[np.bool_], *, most: int) -> Ids:
    """The first so many of the kept (Q, n) positions, `NO_ID` behind them; in one step where a query is alone."""
    if len(near) == 1:
        return near[kept][None, :most]
    order = np.argsort(~kept, axis=1, kind="stable")[:, :most]
    positions = np.take_along_axis(near, order, axis=1)
    positions[~np.take_along_axis(kept, order, axis=1)] = NO_ID
    return positions
