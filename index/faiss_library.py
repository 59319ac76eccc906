"""The faiss module: loaded when it is needed, and its settings, which are one for the process, set for a while."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any

from index.errors import MissingDependencyError

_LEAST_QUERIES = 8  # of a part: fewer are not worth a thread
_MOST_QUERIES = 1024
_reading = threading.Lock()


def let_threads_sleep() -> None:
    """Let waiting OpenMP threads sleep; those that spin starve small machines. Call it before any runtime loads.

    On two cores a query of 64 numbers among 200,000 took 16 ms with spinning threads and 0.2 ms without. Threads that
    sleep at once are woken a thousand times in a training step, a fifth of its time; so they wait some microseconds.
    """
    if os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE").upper() == "PASSIVE":
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # of GNU's OpenMP, which torch and faiss bring


def import_faiss() -> Any:
    """The faiss module."""
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError(package="faiss", extra="cpu", purpose="searching a gallery") from error
    return faiss


def is_faiss_loaded() -> bool:
    """Whether this process has loaded faiss, which takes a tenth of a second."""
    return "faiss" in sys.modules


def find_inner(index: Any) -> Any:
    """An index of faiss without the rotation before it, if there is one."""
    faiss = import_faiss()
    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index


class faiss_threads(ContextDecorator):  # noqa: N801, used like a function: as a generator it would take a twentieth of a search
    """The faiss module, whose calls from the calling thread run on so many threads meanwhile.

    OpenMP keeps the number for each calling thread. Raises as `import_faiss`.
    """

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
    """The faiss module, which meanwhile refuses to read any part of an index that announces more bytes.

    The limit is one for the process, so that one index is read at a time. Raises as `import_faiss`.
    """
    faiss = import_faiss()
    with _reading:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(size_bytes)
        try:
            yield faiss
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def split_queries(count: int, *, threads: int) -> list[slice]:
    """Parts of a batch of queries for so many threads; a few queries are one part.

    A query is always searched by one thread: more would wait for each other longer than they work.
    """
    parts = max(1, min(threads, count // _LEAST_QUERIES), -(-count // _MOST_QUERIES))
    size = max(1, -(-count // parts))
    return [slice(start, start + size) for start in range(0, max(count, 1), size)]
