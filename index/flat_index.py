"""The faiss file of a gallery: an exact inner-product index over the vector shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index.embedder import Vectors
from index.errors import GalleryDamagedError, MissingDependencyError
from index.exact import NO_ID, Floats, Ids
from index.images import printable_path
from index.vectors import VectorRows

_LATENCY_QUERIES = 32
_LATENCY_K = 10
_WRITTEN_AT_ONCE = 1 << 20  # bytes


def build_index(rows: Sequence[VectorRows], *, embedding_dim: int) -> Any:
    """An `IndexIDMap` over an `IndexFlatIP` that holds every row under its id.

    Raises:
        MissingDependencyError: faiss is not installed.
    """
    faiss = import_faiss()
    index = faiss.IndexIDMap(faiss.IndexFlatIP(embedding_dim))
    for part in rows:
        index.add_with_ids(np.ascontiguousarray(part.vectors), part.ids)
    return index


def amend_index(index: Any, *, added: Sequence[VectorRows], deleted: Ids) -> None:
    """Bring an index that was read up to its version: (n,) int64 ids to take out, and rows that came later."""
    for part in added:
        index.add_with_ids(np.ascontiguousarray(part.vectors), part.ids)
    if len(deleted):
        index.remove_ids(deleted)


def write_index(index: Any, path: Path) -> None:
    """Write the index as a file.

    Raises:
        OSError: the disk is full or fails.
    """
    faiss = import_faiss()
    with path.open("wb") as file:  # by itself faiss does not notice that the end of a file was not written
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, _WRITTEN_AT_ONCE))


def read_index(path: Path, *, embedding_dim: int, count: int) -> Any:
    """Read an index whose checksum was verified before.

    Raises:
        GalleryError: faiss cannot read it, or it has other vectors than announced.
        MissingDependencyError: faiss is not installed.
    """
    faiss, shown = import_faiss(), printable_path(str(path))
    faiss.set_deserialization_vector_byte_limit(path.stat().st_size)  # nothing in it can be larger than itself
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise GalleryDamagedError(shown, f"faiss cannot read it: {error}") from error
    if (index.ntotal, index.d) != (count, embedding_dim):
        seen = f"{index.ntotal} vectors of width {index.d}"
        raise GalleryDamagedError(shown, f"damaged: {seen}, expected {count} of width {embedding_dim}")
    return index


def search_index(index: Any, vector: Vectors, *, k: int, threads: int = 1) -> tuple[Floats, Ids]:
    """The k nearest of a (D,) query: (k,) float32 scores and (k,) int64 ids, fewer where the index holds fewer."""
    import_faiss().omp_set_num_threads(threads)  # counts for the calling thread, so it is set at every call
    scores, ids = index.search(vector[None], k)
    found = ids[0] != NO_ID
    return scores[0][found], ids[0][found]


def measure_latency_ms(index: Any, queries: Vectors) -> float:
    """Median time of one search for 10 neighbours, one query at a time, over some of the (Q, D) queries."""
    step = max(1, len(queries) // _LATENCY_QUERIES)
    times = []
    for query in queries[::step][:_LATENCY_QUERIES]:
        start = time.perf_counter()
        search_index(index, np.ascontiguousarray(query), k=_LATENCY_K)
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1000)


def import_faiss() -> Any:
    """The faiss module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError(package="faiss", extra="cpu", purpose="searching a gallery") from error
    return faiss
