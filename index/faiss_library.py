"""The faiss module: lazy import, and temporary changes of its global settings."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any

from index.errors import missing_imports_as_dependency_errors

_LEAST_QUERIES = 8  # of a part: fewer are not worth a thread
_MOST_QUERIES = 1024
_reading = threading.Lock()


def let_threads_sleep() -> None:
    """Let waiting OpenMP threads sleep, after some microseconds of spinning. Call it before any runtime loads.

    On two cores a query of 64 numbers among 200,000 took 16 ms with spinning threads and 0.2 ms without.
    """
    if os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE").upper() == "PASSIVE":
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # of GNU's OpenMP, which torch and faiss bring


def import_faiss() -> Any:
    with missing_imports_as_dependency_errors("searching a gallery"):
        import faiss
    return faiss


def is_faiss_loaded() -> bool:
    """Whether this process has imported faiss, which takes 0.1 s."""
    return "faiss" in sys.modules


def find_inner(index: Any) -> Any:
    """A faiss index without its rotation, if any."""
    faiss = import_faiss()
    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index


class faiss_threads(ContextDecorator):  # noqa: N801, used like a function: as a generator it would take a twentieth of a search
    """The faiss module, with so many OpenMP threads for calls from this thread."""

    def __init__(self, count: int) -> None:
        self._faiss, self._count = import_faiss(), count

    def __enter__(self) -> Any:
        self._before: int = self._faiss.omp_get_max_threads()
        if self._before != self._count:
            self._faiss.omp_set_num_threads(self._count)
        return self._faiss

    def __exit__(self, *error: object) -> None:
        if self._before != self._count:
            self._faiss.omp_set_num_threads(self._before)


@contextmanager
def reading_at_most(size_bytes: int) -> Iterator[Any]:
    """The faiss module, with a limit on parts of an index that it reads; global, so one index is read at a time."""
    faiss = import_faiss()
    with _reading:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(size_bytes)
        try:
            yield faiss
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def split_queries(count: int, *, threads: int) -> list[slice]:
    """Split a batch of queries for threads; few queries are one part, and a query is always searched by one thread."""
    parts = max(1, min(threads, count // _LEAST_QUERIES), -(-count // _MOST_QUERIES))
    size = max(1, -(-count // parts))
    return [slice(start, start + size) for start in range(0, max(count, 1), size)]
