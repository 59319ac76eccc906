"""The faiss module: loaded when it is needed, and how many threads each of its calls may take."""

from __future__ import annotations

import os
from typing import Any

from index.errors import MissingDependencyError

_LEAST_QUERIES = 8  # of a part: fewer are not worth a thread
_MOST_QUERIES = 1024


def let_threads_sleep() -> None:
    """Let waiting OpenMP threads sleep; those that spin starve small machines. Call it before any runtime loads.

    On two cores a query of 64 numbers among 200,000 took 16 ms with spinning threads and 0.2 ms without.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def import_faiss(*, threads: int | None = None) -> Any:
    """The faiss module, whose next calls from the calling thread run on so many threads (None: as they would).

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError(package="faiss", extra="cpu", purpose="searching a gallery") from error
    if threads is not None:
        faiss.omp_set_num_threads(threads)  # OpenMP keeps the number for each calling thread
    return faiss


def split_queries(count: int, *, threads: int) -> list[slice]:
    """Parts of a batch of queries for so many threads; a few queries are one part.

    A query is always searched by one thread: more would wait for each other longer than they work.
    """
    parts = max(1, min(threads, count // _LEAST_QUERIES), -(-count // _MOST_QUERIES))
    size = max(1, -(-count // parts))
    return [slice(start, start + size) for start in range(0, max(count, 1), size)]
