"""Nearest-neighbour search in a version's stored vectors: by a scan, or by candidates of an ANN index, ranked exactly.

Rows that the index lacks are scanned. A filtered search scans the kept rows where that is faster, or where the index
finds too few: k results are found where k exist.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import NO_ID, Floats, Ids, Mask, Vectors
from index.faiss_library import faiss_threads, import_faiss, split_queries
from index.vectors.ann_index import AnnIndex, choose_held_out, map_ann
from index.vectors.exact import measure_cosines
from index.vectors.kinds import KINDS
from index.vectors.shards import VectorRows
from index.vectors.stored_rows import RowSet, StoredRows, best_of, fill_up, needs_faiss
from index.versions.manifest import INDEX_NAME

# Filtered search of an ANN index. A first search ignores the filter, and shows how many of the nearest rows it keeps.
# Where these are enough they are the result; else the index searches kept rows only, with more effort for fewer rows.
_LOOKED = 64  # neighbours of the first search, at least
_LEAST_SHARE = 0.3  # of all rows kept: from here on the first search has the effort for a full result
_SPARE = 1.25  # times that effort
_MOST_RAISED = 16  # times as many candidates as without a filter

MEASURED_K = 10  # neighbours, in measuring an index
_SPARE_CANDIDATES = 16
_SCORE_NOISE = 1e-5  # above the error of a float32 product of unit vectors
_RANKED_AT_ONCE = 1 << 22  # numbers
_SCORES_AT_ONCE = 1 << 24
_PROBE_COST = 4  # a filtered search counts as so many unfiltered ones, compared with a scan


class VectorSearch:
    """Search in stored vectors, with or without an ANN index; safe among threads."""

    def __init__(
        self,
        stored: StoredRows,
        *,
        index: AnnIndex | None = None,
        described: Mapping[str, Any] | None = None,
        deleted: Ids | None = None,
        unindexed: Ids | None = None,
    ) -> None:
        """Stored vectors, without `deleted` (n,) ids, with an index over some.

        `unindexed` are (n,) positions to scan too, by default all that the index lacks.
        """
        self.stored, self.index = stored, index
        self._described = described or {}
        self._indexed = None if index is None else index.rows
        self._members: RowSet | None = None
        if deleted is not None and len(deleted):
            self._members = RowSet.of(~np.isin(stored.ids, deleted), indexed=self._indexed)
        if unindexed is None:
            lacking = np.full(len(stored), index is not None)
            if index is not None:
                lacking[index.rows] = False
            unindexed = np.flatnonzero(lacking if self._members is None else lacking & self._members.mask)
        self._unindexed: Ids = unindexed
        self._unindexed_vectors = stored.gather(unindexed)

    @classmethod
    def open(
        cls, shards: Sequence[VectorRows], *, folder: Path, described: Mapping[str, Any], deleted: Ids | None = None
    ) -> "VectorSearch":
        """Open an index that `ann_building.build_ann_index` wrote, whose checksum was verified before."""
        stored = StoredRows.of(shards)
        if KINDS[described["type"]].is_exact:
            return cls(stored, deleted=deleted)
        count = int(stored.starts[described["shards"]])
        held_out = choose_held_out(count, described["held_out"])  # were added to the index last
        rows = np.concatenate([np.setdiff1d(np.arange(count), held_out, assume_unique=True), held_out])
        index = map_ann(folder / INDEX_NAME, described=described, width=stored.width, rows=rows)
        return cls(stored, index=index, described=described, deleted=deleted)

    def subset(self, ids: Ids) -> RowSet:
        """The members among (n,) int64 ids, for `search`."""
        mask = np.isin(self.stored.ids, ids)
        if self._members is not None:
            mask &= self._members.mask
        return replace(RowSet.of(mask, indexed=self._indexed), stored_ids=self.stored.ids)

    def search(self, queries: Vectors, *, k: int, among: RowSet | None = None, threads: int = 1) -> tuple[Floats, Ids]:
        """Nearest vectors (`VectorStore.search`), with `among` of `subset`; a single query uses one thread."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        among = self._members if among is None else among

        def search_part(part: slice) -> tuple[Floats, Ids]:
            """(Q, k) scores and positions, in the calling thread."""
            some = queries[part]
            is_plain = self.index is None and among is None and not needs_faiss(len(some), len(self.stored))
            with nullcontext() if is_plain else faiss_threads(1):
                groups = self._find(some, count=k, among=among)
            if len(groups) == 1 and len(groups[0][1]) == len(some):
                return self._rank(some, groups[0][1], k=k)
            scores = np.full((len(some), k), -np.inf, dtype=np.float32)
            found = np.full((len(some), k), NO_ID, dtype=np.int64)
            for rows, positions in groups:
                scores[rows], found[rows] = self._rank(some[rows], positions, k=k)
            return scores, found

        parts = split_queries(len(queries), threads=threads)
        if len(parts) == 1:
            scores, found = search_part(parts[0])
        else:  # by query, so that ranking runs side by side too
            with ThreadPoolExecutor(threads) as pool:
                scores, found = map(np.concatenate, zip(*pool.map(search_part, parts), strict=True))
        return scores, self.stored.ids_at[found]

    def search_above(
        self, queries: Vectors, *, min_score: float, among: RowSet | None = None
    ) -> list[tuple[Floats, Ids]]:
        """Vectors above a score (`VectorStore.search_above`), by a scan."""
        among = self._members if among is None else among
        if not len(queries):
            return []
        near: list[list[Ids]] = [[] for _ in queries]
        size = max(1, _SCORES_AT_ONCE // max(len(queries), self.stored.width))
        for shard, start in zip(self.stored.shards, self.stored.starts.tolist(), strict=False):
            for begin in range(0, len(shard.ids), size):
                scores = queries @ shard.vectors[begin : begin + size].T
                rows, columns = np.nonzero(scores >= min_score - _SCORE_NOISE)
                for row, positions in enumerate(np.split(columns, np.searchsorted(rows, range(1, len(queries))))):
                    near[row].append(positions + start + begin)
        results: list[tuple[Floats, Ids]] = []
        for row, found in enumerate(near):
            positions = np.concatenate(found)
            if among is not None:
                positions = positions[among.mask[positions]]
            scores, positions = self.rank(queries[row], positions)
            similar = scores >= min_score
            results.append((scores[similar], self.stored.ids[positions[similar]]))
        return results

    def rank(self, query: Vectors, positions: Ids) -> tuple[Floats, Ids]:
        """Rank candidate positions (or `NO_ID`) of a (D,) query: (n,) scores and positions, best first."""
        positions = positions.copy()
        positions.sort()  # so that ties go to the smaller id
        if len(positions) and positions[0] == NO_ID:
            positions = positions[positions != NO_ID]
        size = max(1, _RANKED_AT_ONCE // self.stored.width)
        if len(positions) <= size:
            scores = measure_cosines(self.stored.gather(positions), query)
        else:
            starts = range(0, len(positions), size)
            parts = [measure_cosines(self.stored.gather(positions[at : at + size]), query) for at in starts]
            scores = np.concatenate(parts)
        order = (-scores).argsort(kind="stable")
        return scores[order], positions[order]

    def _find(self, queries: Vectors, *, count: int, among: RowSet | None) -> list[tuple[Ids, Ids]]:
        """Groups of queries, as row numbers, with (n, c) candidate positions."""
        every = np.arange(len(queries))
        if self.index is None:
            return list(self._scan(queries, every, count=count, among=among))
        chosen = self._described["parameters"]
        kind = self.index.kind
        effort, depth = _scale(chosen[kind.effort], chosen["candidates"], count, kind.keeps_effort)
        effort, depth = min(effort, self.index.most_effort), min(depth, len(self.index.rows))
        if self._is_scan_sooner(effort if among is None else _PROBE_COST * effort, depth, among):
            return list(self._scan(queries, every, count=count, among=among))
        if among is None:
            positions = self.index.search(queries, k=depth, effort=effort)[1]
            unsure = positions[:, min(count, depth) - 1] == NO_ID
        else:
            positions, unsure = self._search_among(self.index, queries, effort, depth, among)
            unsure |= (positions != NO_ID).sum(axis=1) < count
        if len(self._unindexed):
            unindexed = self._find_unindexed(queries, count=count, among=among)
            positions = np.concatenate([positions, unindexed], axis=1)
        if not np.count_nonzero(unsure):
            return [(every, positions)]
        found = [] if unsure.all() else [(every[~unsure], positions[~unsure])]
        return [*found, *self._scan(queries, every[unsure], count=count, among=among)]

    def _search_among(
        self, index: AnnIndex, queries: Vectors, effort: int, depth: int, among: RowSet
    ) -> tuple[Ids, Mask]:
        """(Q, c) candidate positions among the kept rows, and (Q,) bool for queries that need a scan."""
        first, looked, share = effort, max(_LOOKED, depth), len(among) / len(among.mask)
        if share >= _LEAST_SHARE:
            first, looked = math.ceil(_SPARE * effort / share), max(looked, math.ceil(_SPARE * depth / share))
        if index.kind.keeps_effort:
            looked = first = max(looked, first)
        first = min(first, index.most_effort)
        near = index.search(queries, k=min(looked, len(index.rows)), effort=first)[1]
        kept = among.mask[near] & (near != NO_ID)
        counts = np.count_nonzero(kept, axis=1)
        needed = effort * near.shape[1] / np.maximum(counts, 0.5)
        is_hard = (counts < depth) | (needed > first)
        most = near.shape[1] if index.is_reduced else depth  # coarse scores order distant rows badly: rank all
        if len(near) == 1:  # sooner than sorting
            positions = near[kept][None, :most]
        else:
            order = np.argsort(~kept, axis=1, kind="stable")[:, :most]
            positions = np.take_along_axis(near, order, axis=1)
            positions[~np.take_along_axis(kept, order, axis=1)] = NO_ID
        unsure = np.zeros(len(queries), dtype=bool)
        if not np.count_nonzero(is_hard):
            return positions, unsure
        hard = np.flatnonzero(is_hard)
        raised = np.exp2(np.ceil(np.log2(needed[hard]))).astype(np.int64)
        for value in np.unique(raised).tolist():
            group = hard[raised == value]
            if self._is_scan_sooner(value, depth, among):
                unsure[group] = True
                continue
            raised_depth = min(_MOST_RAISED, math.ceil(value / effort)) * depth
            wanted = min(raised_depth if index.is_reduced else depth, len(index.rows))
            _, found = index.search(queries[group], k=wanted, effort=min(value, index.most_effort), among=among.bits)
            missing = max(0, wanted - positions.shape[1])
            positions = np.pad(positions, ((0, 0), (0, missing)), constant_values=NO_ID)
            positions[group] = NO_ID
            positions[group, :wanted] = found
        return positions, unsure

    def _scan(self, queries: Vectors, rows: Ids, *, count: int, among: RowSet | None) -> Iterator[tuple[Ids, Ids]]:
        total = len(self.stored) if among is None else len(among)
        count = min(count, total)
        depth = min(total, count + _SPARE_CANDIDATES)
        while len(rows) and depth:
            scores, positions = self.stored.scan(queries[rows], k=depth, among=among)
            tied = scores[:, -1] >= scores[:, count - 1] - _SCORE_NOISE
            tied &= depth < total
            if not tied.all():
                yield rows[~tied], positions[~tied]
            rows, depth = rows[tied], min(total, 4 * depth)

    def _find_unindexed(self, queries: Vectors, *, count: int, among: RowSet | None) -> Ids:
        """(Q, n) positions of the nearest rows that the index lacks."""
        inside = self._unindexed if among is None else self._unindexed[among.mask[self._unindexed]]
        depth = min(count + _SPARE_CANDIDATES, len(inside))
        if among is not None and len(inside) < len(self._unindexed):
            return self.stored.scan(queries, k=depth, among=RowSet(among.mask, inside))[1]
        faiss = import_faiss()
        near: Ids = faiss.knn(queries, self._unindexed_vectors, depth, metric=faiss.METRIC_INNER_PRODUCT)[1]
        return self._unindexed[near]

    def _is_scan_sooner(self, effort: int, depth: int, among: RowSet | None) -> bool:
        """Whether a scan is no slower than a search with this effort plus ranking so many candidates."""
        rows = len(self.stored) if among is None else len(among)
        costs = self._described["costs"]
        return rows <= effort * float(costs["rows_per_effort"]) + depth * float(costs["rows_per_candidate"])

    def _rank(self, queries: Vectors, positions: Ids, *, k: int) -> tuple[Floats, Ids]:
        """The k best of (Q, c) candidate positions by exact scores."""
        if len(queries) == 1:
            scores, best = self.rank(queries[0], positions[0])
            return fill_up(scores[None, :k], best[None, :k], k=k)
        size = max(1, _RANKED_AT_ONCE // max(1, positions.shape[1] * self.stored.width))
        if len(queries) > size:
            starts = range(0, len(queries), size)
            parts = [self._rank(queries[at : at + size], positions[at : at + size], k=k) for at in starts]
            scores, best = (np.concatenate(part) for part in zip(*parts, strict=True))
            return scores, best
        positions = np.sort(positions, axis=1)  # so that ties go to the smaller id
        scores = measure_cosines(self.stored.gather(positions), queries)
        missing = positions == NO_ID
        if missing.any():
            scores[missing] = -np.inf
            positions[missing] = NO_ID
        return best_of(scores, positions, k=k)


@lru_cache(maxsize=256)
def _scale(effort: int, candidates: int, count: int, keeps_effort: bool) -> tuple[int, int]:
    """Scale effort and candidates, measured for 10 neighbours, to `count`."""
    factor = max(1.0, count / MEASURED_K)
    depth = max(count, round(candidates * factor))
    effort = round(effort * factor**0.5)
    return (max(effort, 2 * count, depth) if keeps_effort else effort), depth
