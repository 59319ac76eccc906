"""Ranks of a query's relevant items, by (falling product, id), for Recall@K and MAP@R.

A blocked float32 product finds the candidates for the first places. The exact product is taken only of those that
stand closer to a neighbour than the error of float32.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids
from index.errors import InputError
from index.threads import map_ahead, multiplying_workers
from index.vectors.exact import bound_error, find_candidates, multiply_pairs

_PRODUCTS_AT_ONCE = 1 << 22
_LARGEST_NORM = 2.0**60
_ROWS_AT_ONCE = 4096
_KEYS_OF_A_LINE = np.int64(1) << 32

Doubles = npt.NDArray[np.float64]
PairRelevance = Callable[[Ids, Ids], Doubles]
"""(P,) query rows and (P,) gallery rows to (P,) relevance in 0..1, in place of equal labels."""


@dataclass(frozen=True, slots=True)
class RelevantRanks:
    """Ranks of relevant items, from 1, rising within a query, and exact up to the query's depth.

    Attributes:
        starts: (Q + 1,) int64; `ranks[starts[q] : starts[q + 1]]` belong to query q.
        ranks: int64.
        relevance: float64 of each rank, above 0 and at most 1.
    """

    starts: Ids
    ranks: Ids
    relevance: Doubles

    @property
    def queries(self) -> Ids:
        """The query of each rank."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def found(self) -> Doubles:
        """Sum of the relevance of a query's items down to each rank."""
        sums = np.append(0.0, self.relevance.cumsum())
        found: Doubles = sums[1:] - np.repeat(sums[self.starts[:-1]], np.diff(self.starts))
        return found


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labelled rows: (N, D) float32 `vectors`, (N,) int64 `labels`, and the `groups` (N,) int64 that each lies in.

    A query finds nothing of its own group; without groups it finds all.
    """

    vectors: Floats
    labels: Ids
    groups: Ids | None = None


def rank_relevant(
    queries: Labelled, gallery: Labelled, *, own: Ids, ids: Ids, depths: Ids, relevance: PairRelevance | None = None
) -> Iterator[tuple[Ids, RelevantRanks]]:
    """The relevant items' ranks of some queries at a time: their rows, and the ranks.

    Args:
        own: (Q,) int64 row of the query in the gallery, which it does not find; -1 where it is no member.
        ids: (N,) int64, unique; of equal products the smaller id stands first.
        depths: (Q,) int64 rank down to which all are wanted; a query of depth 0 is left out.
        relevance: of pairs; None: 1 for pairs of one label.
    """
    by_id = np.argsort(ids)
    places = np.empty(len(ids) + 1, dtype=np.int64)
    places[by_id], places[-1] = np.arange(len(ids)), -1
    ranking = _Ranking(queries, gallery, by_id=by_id, own=places[own], depths=depths, relevance=relevance)
    size = max(4, _PRODUCTS_AT_ONCE // len(ids))
    wanted = np.flatnonzero(depths)
    wanted = wanted[np.argsort(depths[wanted], kind="stable")]  # equal depths together
    blocks = (wanted[start : start + size] for start in range(0, len(wanted), size))
    with (
        multiplying_workers() as workers,
        closing(map_ahead(ranking.rank, blocks, workers=workers, ahead=2 * workers)) as ranked,
    ):
        yield from ranked


class _Ranking:
    """Queries and a gallery in the order of ids, both scaled by powers of two where products would be too large."""

    def __init__(
        self, queries: Labelled, gallery: Labelled, *, by_id: Ids, own: Ids, depths: Ids,
        relevance: PairRelevance | None,
    ) -> None:  # fmt: skip
        norms, others = _measure_norms(queries.vectors), _measure_norms(gallery.vectors)
        if not np.array_equal(by_id, np.arange(len(by_id))):
            groups = None if gallery.groups is None else gallery.groups[by_id]
            gallery = Labelled(gallery.vectors[by_id], gallery.labels[by_id], groups)
        self._queries, self._gallery, self._own, self._depths = queries, gallery, own, depths
        self._by_id, self._relevance = by_id, relevance
        self._scale, other_scale = _find_scale(norms), _find_scale(others)
        largest = float(others.max()) * other_scale
        self._errors = bound_error(norms * self._scale, largest=largest, dim=gallery.vectors.shape[1])
        self._product_scale = self._scale * other_scale
        self._columns = gallery.vectors if other_scale == 1 else gallery.vectors * np.float32(other_scale)

    def rank(self, rows: Ids) -> tuple[Ids, RelevantRanks]:
        queries, gallery, errors = self._queries, self._gallery, self._errors[rows]
        products = (queries.vectors[rows] * np.float32(self._scale)) @ self._columns.T
        members = np.flatnonzero(self._own[rows] >= 0)
        products[members, self._own[rows[members]]] = -np.inf
        if queries.groups is not None and gallery.groups is not None:
            products[queries.groups[rows, None] == gallery.groups] = -np.inf
        count = products.shape[1]
        hits = find_candidates(products, k=min(int(self._depths[rows].max()), count), errors=errors)
        lines, columns = np.divmod(hits, count)
        scores = products.ravel()[hits]
        order = np.argsort(_make_keys(lines, scores), kind="stable")
        close = np.diff(scores[order]) >= -2 * errors[lines[order[1:]]]
        close &= lines[order[1:]] == lines[order[:-1]]
        uncertain = order[np.append(close, False) | np.insert(close, 0, False)]
        if len(uncertain):
            scores[uncertain] = multiply_pairs(
                queries.vectors, gallery.vectors, rows[lines[uncertain]], columns[uncertain], scale=self._product_scale
            )
            order = np.argsort(_make_keys(lines, scores), kind="stable")  # columns rise, and with them ids
        ranks = np.arange(1, len(hits) + 1) - np.searchsorted(lines, lines)
        columns = columns[order]
        if self._relevance is None:
            kept = np.flatnonzero(queries.labels[rows[lines]] == gallery.labels[columns])
            relevance = np.ones(len(kept))
        else:
            kept = np.flatnonzero(ranks <= self._depths[rows[lines]])
            relevance = self._relevance(rows[lines[kept]], self._by_id[columns[kept]])
            kept, relevance = kept[relevance > 0], relevance[relevance > 0]
        starts = np.searchsorted(lines[kept], np.arange(len(rows) + 1))
        return rows, RelevantRanks(starts, ranks[kept], relevance)


def _make_keys(lines: Ids, scores: Floats) -> Ids:
    """int64 that order pairs of line and score by line, then by falling score; equal for equal pairs."""
    bits = (scores + np.float32(0)).view(np.int32)  # 0 has other bits than -0
    return lines * _KEYS_OF_A_LINE - np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def _measure_norms(rows: Floats) -> Doubles:
    """(N,) norms of (N, D) rows."""
    norms = np.empty(len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[start : start + _ROWS_AT_ONCE].astype(np.float64)
        norms[start : start + len(block)] = np.sqrt(np.einsum("ij,ij->i", block, block))
    unusable = np.flatnonzero(~np.isfinite(norms))
    if len(unusable):
        raise InputError(
            f"{len(unusable)} of {len(norms)} vectors, the first in row {unusable[0]}, hold NaN or infinite numbers; "
            "they have no place in a ranking: leave them out, or embed their images again"
        )
    return norms


def _find_scale(norms: Doubles) -> float:
    """1 where no square of the (N,) norms is too large for float32, else the power of two that brings all below 1."""
    largest = float(norms.max(initial=0.0))
    return 1.0 if largest < _LARGEST_NORM else float(2.0 ** -int(np.frexp(largest)[1]))
