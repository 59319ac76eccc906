"""A version's vectors as one long table, though they lie in several shards: rows are read and scanned by position.

The scan of many rows is faiss's, for it reads mapped rows where they lie, and passes over those that a filter does not
keep. It gives candidates, of scores in float32; `search.VectorSearch` ranks them exactly. So NumPy may scan as well,
and does for a lone query of a process that has no faiss yet: to load it takes longer than to look at 100,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.faiss_library import import_faiss, is_faiss_loaded
from index.vectors.shards import VectorRows

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]
_ROWS_AT_ONCE = 65_536
_MANY_QUERIES = 20  # from here on faiss multiplies matrices, but only without a selector
_FEW_ROWS = 1 << 17  # a million of its products take NumPy as long as faiss takes to be loaded
_SPARSE = 0.4  # below this share a list of rows is faster than a bit for every row


@dataclass(frozen=True, slots=True)
class RowSet:
    """Some of N stored rows.

    Attributes:
        mask: (N,) bool.
        positions: (n,) int64, rising.
        bits: of the mask, in the order in which an index holds the rows, for faiss; None where nobody asks an index.
        stored_ids: (N,) int64 rising ids of all stored rows, for a set that is asked for its ids.
    """

    mask: Mask
    positions: Ids
    bits: Bits | None = None
    stored_ids: Ids = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    @classmethod
    def of(cls, mask: Mask, *, indexed: Ids | None = None) -> RowSet:
        """The rows that a mask marks; `indexed` are the positions that an index holds, in its order."""
        return cls(mask, np.flatnonzero(mask), None if indexed is None else pack(mask[indexed]))

    @property
    def ids(self) -> Ids:
        """(n,) int64, rising."""
        chosen: Ids = self.stored_ids[self.positions]
        return chosen

    def has(self, ids: Ids) -> Mask:
        """(m,) bool: which of (m,) int64 ids of stored rows are among them."""
        chosen: Mask = self.mask[np.searchsorted(self.stored_ids, ids)]
        return chosen

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """All rows of some shards, counted on from one to the next; ids rise with the positions.

    Attributes:
        shards: of mapped vectors; one at least.
        starts: (shards + 1,) int64 position of each shard's first row, and N.
    """

    shards: Sequence[VectorRows]
    starts: Ids
    _ids: Ids = field(repr=False)  # and `NO_ID` behind them, where -1 finds it

    @classmethod
    def of(cls, shards: Sequence[VectorRows]) -> StoredRows:
        """The rows of these shards."""
        shards = [VectorRows(shard.ids, shard.vectors.view(np.ndarray)) for shard in shards]  # faster than maps
        starts = np.cumsum([0, *(len(shard.ids) for shard in shards)])
        return cls(shards, starts, np.concatenate([*(shard.ids for shard in shards), [NO_ID]]))

    def __len__(self) -> int:
        return len(self._ids) - 1

    @property
    def ids(self) -> Ids:
        """(N,) int64, rising."""
        return self._ids[:-1]

    def ids_at(self, positions: Ids) -> Ids:
        """The int64 ids of positions of any shape; `NO_ID` where the position is `NO_ID`."""
        ids: Ids = self._ids[positions]
        return ids

    @property
    def width(self) -> int:
        """Numbers of each vector."""
        return int(self.shards[0].vectors.shape[1])

    def gather(self, positions: Ids) -> Vectors:
        """The float32 vectors of int64 positions of any shape, one more dimension at the end.

        Negative positions stand for some row or other.
        """
        if len(self.shards) == 1:
            rows: Vectors = self.shards[0].vectors.take(positions, axis=0, mode="clip")
            return rows
        vectors = np.empty((*positions.shape, self.width), dtype=np.float32)
        positions = np.maximum(positions, 0)
        numbers = np.searchsorted(self.starts, positions, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            vectors[here] = self.shards[number].vectors[positions[here] - self.starts[number]]
        return vectors

    def scan(self, queries: Vectors, *, k: int, among: RowSet | None = None) -> tuple[Floats, Ids]:
        """The k nearest of each of (Q, D) queries among all rows, or some: float32 scores and positions.

        Both are (Q, k), best first, `NO_ID` with score -inf where there are fewer. Scores are sums in float32, whose
        order may differ between equal vectors.
        """
        found = [
            (scores, positions)
            for number in range(len(self.shards))
            for scores, positions in self._scan_shard(number, queries, k=k, among=among)
        ]
        if not found:
            return np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), NO_ID, np.int64)
        scores, positions = (np.concatenate(part, axis=1) for part in zip(*found, strict=True))
        if len(found) == 1 and scores.shape[1] == k:
            return scores, positions
        scores[positions == NO_ID] = -np.inf
        return best_of(scores, positions, k=k)

    def _scan_shard(
        self, number: int, queries: Vectors, *, k: int, among: RowSet | None
    ) -> Iterator[tuple[Floats, Ids]]:
        vectors, start = self.shards[number].vectors, int(self.starts[number])
        if among is None:
            yield _scan_all(vectors, queries, k=k, start=start)
            return
        first, last = np.searchsorted(among.positions, [start, start + len(vectors)])
        chosen = among.positions[first:last] - start
        if len(chosen) == len(vectors):
            yield _scan_all(vectors, queries, k=k, start=start)
        elif len(queries) < _MANY_QUERIES and len(chosen):
            yield _scan_some(vectors, queries, k=k, start=start, chosen=chosen)
        else:
            for begin in range(0, len(chosen), _ROWS_AT_ONCE):
                part = chosen[begin : begin + _ROWS_AT_ONCE]
                scores, positions = _scan_all(vectors[part], queries, k=k, start=0)
                yield scores, np.where(positions == NO_ID, NO_ID, start + part[positions])


def needs_faiss(queries: int, rows: int) -> bool:
    """Whether faiss makes a scan of so many rows, all of which count, by so many queries."""
    return queries > 1 or rows > _FEW_ROWS or is_faiss_loaded()


def _scan_all(vectors: Vectors, queries: Vectors, *, k: int, start: int) -> tuple[Floats, Ids]:
    if not needs_faiss(len(queries), len(vectors)):
        scores, k = np.vecdot(vectors, queries[0]), min(k, len(vectors))  # in the calling thread alone
        best = np.argpartition(scores, len(scores) - k)[len(scores) - k :]
        rows = best[np.argsort(-scores[best], kind="stable")]
        return scores[rows][None], rows[None] + start
    faiss = import_faiss()
    scores, rows = faiss.knn(queries, vectors, min(k, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT)
    return scores, np.where(rows == NO_ID, NO_ID, rows + start)


def _scan_some(vectors: Vectors, queries: Vectors, *, k: int, start: int, chosen: Ids) -> tuple[Floats, Ids]:
    faiss, k = import_faiss(), min(k, len(chosen))
    scores = np.empty((len(queries), k), dtype=np.float32)
    rows = np.empty((len(queries), k), dtype=np.int64)
    if len(chosen) < _SPARSE * len(vectors):
        selector = faiss.IDSelectorArray(len(chosen), faiss.swig_ptr(chosen))
    else:
        mask = np.zeros(len(vectors), dtype=bool)
        mask[chosen] = True
        bits = pack(mask)
        selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
    faiss.knn_inner_product(
        *map(faiss.swig_ptr, (queries, vectors)), vectors.shape[1], len(queries), len(vectors), k,
        *map(faiss.swig_ptr, (scores, rows)), selector,
    )  # fmt: skip
    return scores, np.where(rows == NO_ID, NO_ID, rows + start)


def pack(mask: Mask) -> Bits:
    """A bit for each of (m,) rows, as faiss wants them."""
    return np.packbits(mask, bitorder="little")


def best_of(scores: Floats, positions: Ids, *, k: int) -> tuple[Floats, Ids]:
    """The k best columns of each row of (Q, n) scores, in order; filled up with `NO_ID` where n is less than k."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    rows = np.arange(len(scores))[:, None]
    return fill_up(scores[rows, order], positions[rows, order], k=k)


def fill_up(scores: Floats, positions: Ids, *, k: int) -> tuple[Floats, Ids]:
    """(Q, n) results with `NO_ID` and -inf behind them up to k."""
    missing = k - scores.shape[1]
    if missing <= 0:
        return scores, positions
    filled = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
    return filled, np.pad(positions, ((0, 0), (0, missing)), constant_values=NO_ID)
