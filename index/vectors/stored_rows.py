"""The stored rows of a version, as one table over its shards: read and scanned by position.

faiss scans, because it reads mapped rows in place and skips those that a filter excludes. A scan gives candidates with
float32 scores, which `search.VectorSearch` ranks exactly. NumPy scans for a single query while faiss is not loaded:
importing it takes longer than scanning 100,000 rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Mask, Vectors
from index.faiss_library import import_faiss, is_faiss_loaded
from index.vectors.shards import VectorRows

Bits = npt.NDArray[np.uint8]
_ROWS_AT_ONCE = 65_536
_MANY_QUERIES = 20  # from here on faiss multiplies matrices, but only without a selector
_FEW_ROWS = 1 << 17  # a million of its products take NumPy as long as faiss takes to be loaded
_SPARSE = 0.4  # below this share a list of rows is faster than a bit for every row


@dataclass(frozen=True, slots=True)
class RowSet:
    """A subset of N stored rows: (N,) bool `mask`, and (n,) int64 ascending `positions`.

    `bits` is the mask for faiss, in the order of an index's rows; `stored_ids` are the (N,) ids for `ids` and `has`.
    """

    mask: Mask
    positions: Ids
    bits: Bits | None = None
    stored_ids: Ids = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    @classmethod
    def of(cls, mask: Mask, *, indexed: Ids | None = None) -> "RowSet":
        """The rows of a mask; `indexed` are the positions in the order of an index."""
        return cls(mask, np.flatnonzero(mask), None if indexed is None else pack(mask[indexed]))

    @property
    def ids(self) -> Ids:
        chosen: Ids = self.stored_ids[self.positions]
        return chosen

    def has(self, ids: Ids) -> Mask:
        """(m,) bool: which of (m,) stored ids are in the subset."""
        chosen: Mask = self.mask[np.searchsorted(self.stored_ids, ids)]
        return chosen

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """All rows of one or more shards, numbered consecutively; ids rise with the positions.

    `starts` are the (shards + 1,) int64 positions of each shard's first row, and N.
    """

    shards: Sequence[VectorRows]
    starts: Ids
    ids_at: Ids = field(repr=False)  # by position, then `NO_ID`, which position -1 has

    @classmethod
    def of(cls, shards: Sequence[VectorRows]) -> "StoredRows":
        shards = [VectorRows(shard.ids, shard.vectors.view(np.ndarray)) for shard in shards]  # faster than maps
        starts = np.cumsum([0, *(len(shard.ids) for shard in shards)])
        return cls(shards, starts, np.concatenate([*(shard.ids for shard in shards), [NO_ID]]))

    def __len__(self) -> int:
        return len(self.ids_at) - 1

    @property
    def ids(self) -> Ids:
        """(N,) int64, ascending."""
        return self.ids_at[:-1]

    @property
    def width(self) -> int:
        return int(self.shards[0].vectors.shape[1])

    def gather(self, positions: Ids) -> Vectors:
        """The float32 vectors of int64 positions of any shape; negative positions give an arbitrary row."""
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
        """The k nearest rows of each of (Q, D) queries: (Q, k) float32 scores and positions, best first.

        `NO_ID` with -inf where there are fewer. Scores are float32 sums, which may differ between equal vectors.
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
    """Whether faiss, and not NumPy, scans so many rows for so many queries."""
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
        *map(faiss.swig_ptr, (queries, vectors)),
        vectors.shape[1],
        len(queries),
        len(vectors),
        k,
        *map(faiss.swig_ptr, (scores, rows)),
        selector,
    )
    return scores, np.where(rows == NO_ID, NO_ID, rows + start)


def pack(mask: Mask) -> Bits:
    """The mask as bits for faiss."""
    return np.packbits(mask, bitorder="little")


def best_of(scores: Floats, positions: Ids, *, k: int) -> tuple[Floats, Ids]:
    """The k best columns of each row of (Q, n) scores, in order, padded by `fill_up`."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    rows = np.arange(len(scores))[:, None]
    return fill_up(scores[rows, order], positions[rows, order], k=k)


def fill_up(scores: Floats, positions: Ids, *, k: int) -> tuple[Floats, Ids]:
    """Pad (Q, n) results with `NO_ID` and -inf to k columns."""
    missing = k - scores.shape[1]
    if missing <= 0:
        return scores, positions
    filled = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
    return filled, np.pad(positions, ((0, 0), (0, missing)), constant_values=NO_ID)
