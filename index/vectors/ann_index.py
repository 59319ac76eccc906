"""ANN index (approximate nearest neighbours): built, written, mapped and searched with faiss; read-only once built."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.errors import GalleryDamagedError
from index.faiss_library import find_inner, import_faiss, reading_at_most
from index.progress import Progress, no_progress
from index.text import printable_path
from index.vectors.kinds import KINDS, AnnPlan, IndexKind
from index.vectors.stored_rows import Bits, StoredRows

_GOLDEN_RATIO = (1 + 5**0.5) / 2
_ROWS_AT_ONCE = 16_384
_WRITTEN_AT_ONCE = 1 << 20  # bytes


class AnnIndex:
    """A built ANN index; `rows` are the (m,) int64 stored positions of its vectors, `mapped` the file that it reads."""

    def __init__(self, faiss_index: Any, kind: str, rows: Ids, mapped: npt.NDArray[np.uint8] | None = None) -> None:
        self.faiss_index, self.type, self.mapped = faiss_index, kind, mapped
        self.kind: IndexKind = KINDS[kind]
        self.is_reduced = isinstance(faiss_index, import_faiss().IndexPreTransform)
        self.most_effort = self.kind.most_effort(faiss_index)
        self._positions: Ids = np.append(rows, NO_ID)  # so that faiss's -1 finds it
        self.rows: Ids = self._positions[:-1]

    def search(self, queries: Vectors, *, k: int, effort: int, among: Bits | None = None) -> tuple[Floats, Ids]:
        """The k nearest for each of (Q, D) float32 queries: (Q, k) float32 scores of the index, (Q, k) positions or -1.

        `k` is at most the effort, where the kind keeps it; `among` has a bit for each vector, see `stored_rows.pack`.
        """
        if among is None:
            parameters = _parameters(self.type, effort, self.is_reduced)
        else:
            faiss = import_faiss()
            selector = faiss.IDSelectorBitmap(len(among), faiss.swig_ptr(among))
            parameters = _make_parameters(self.type, effort, self.is_reduced, sel=selector)
        scores, numbers = self.faiss_index.search(queries, k, params=parameters)
        return scores, self._positions[numbers]


def _make_parameters(kind: str, effort: int, is_reduced: bool, **others: Any) -> Any:
    parameters = KINDS[kind].parameters(effort, **others)
    return import_faiss().SearchParametersPreTransform(index_params=parameters) if is_reduced else parameters


_parameters = lru_cache(maxsize=256)(_make_parameters)  # making them takes a tenth of a search


def choose_held_out(count: int, size: int) -> Ids:
    """(size,) int64 ascending positions of the held-out vectors of `count`, spread evenly by the golden ratio."""
    return np.sort((np.arange(size) * _GOLDEN_RATIO % 1 * count).astype(np.int64))


def build_ann(
    plan: AnnPlan,
    stored: StoredRows,
    rows: Ids,
    *,
    axes: Vectors | None = None,
    seed: int,
    progress: Progress = no_progress,
) -> AnnIndex:
    """Build a planned ANN index over (m,) sorted stored positions; `axes` are (d, D) orthonormal rows of a rotation."""
    faiss, kind = import_faiss(), KINDS[plan.type]
    inner = faiss.index_factory(stored.width if axes is None else len(axes), plan.factory, faiss.METRIC_INNER_PRODUCT)
    index = inner
    if axes is not None:  # a projection on them: unlike faiss's PCA it keeps the mean, and the order of inner products
        rotation = faiss.LinearTransform(axes.shape[1], len(axes), False)
        faiss.copy_array_to_vector(np.ascontiguousarray(axes, dtype=np.float32).ravel(), rotation.A)
        rotation.is_trained = True
        rotation.set_is_orthonormal()
        index = faiss.IndexPreTransform(rotation, inner)
    wanted = min(kind.count_training_rows(len(rows)), len(rows))
    chosen = np.random.default_rng(seed).choice(rows, size=wanted, replace=False)
    kind.train(index, stored.gather(np.sort(chosen)))
    return extend_ann(AnnIndex(index, plan.type, rows[:0]), stored, rows, progress=progress)


def extend_ann(index: AnnIndex, stored: StoredRows, rows: Ids, *, progress: Progress = no_progress) -> AnnIndex:
    """Add stored positions to an index; the given object must not be used any more."""
    progress(0, len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        index.faiss_index.add(np.ascontiguousarray(stored.gather(rows[start : start + _ROWS_AT_ONCE])))
        progress(min(start + _ROWS_AT_ONCE, len(rows)), len(rows))
    return AnnIndex(index.faiss_index, index.type, np.concatenate([index.rows, rows]))


def write_ann(index: AnnIndex, path: Path) -> None:
    faiss = import_faiss()
    with path.open("wb") as file:  # faiss's own writer misses a full disk at the end of a file
        faiss.write_index(index.faiss_index, faiss.PyCallbackIOWriter(file.write, _WRITTEN_AT_ONCE))


def map_ann(path: Path, *, described: Mapping[str, Any], width: int, rows: Ids) -> AnnIndex:
    """Map an ANN index, whose checksum was verified before; pages are read on demand."""
    faiss, shown = import_faiss(), printable_path(path)
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise GalleryDamagedError(shown, f"cannot be mapped: {error}") from error
    # faiss's own mapping (IO_FLAG_MMAP copies graphs, IO_FLAG_MMAP_IFC does not) crashes on some files that were cut;
    # the tables that are skipped are of L2 distances.
    flags = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
    try:
        with reading_at_most(len(mapped)):  # nothing in it can be larger than itself
            index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(mapped), len(mapped)), flags)
    except RuntimeError as error:
        raise GalleryDamagedError(shown, f"faiss cannot read it: {error}") from error
    inner = find_inner(index)
    if not KINDS[described["type"]].is_of(inner) or (index.ntotal, index.d) != (len(rows), width):
        seen = f"{type(inner).__name__} of {index.ntotal} vectors of width {index.d}"
        raise GalleryDamagedError(
            shown, f"damaged: {seen}, expected {described['type']} of {len(rows)} of width {width}"
        )
    return AnnIndex(index, str(described["type"]), rows, mapped)
