"""Threads: usable cores, an ordered parallel map, abandonment, and BLAS thread limits."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_MULTIPLYING = 16  # each holds some 30 MB
_local = threading.local()


class AbandonedError(Exception):
    """Raised in a thread that its caller has given up."""


def heed_abandonment(abandoned: threading.Event) -> None:
    """Let `raise_if_abandoned` raise in this thread once the event is set."""
    _local.abandoned = abandoned


def raise_if_abandoned() -> None:
    """Raise AbandonedError in a thread of a closed `map_ahead`."""
    event = getattr(_local, "abandoned", None)
    if event is not None and event.is_set():
        raise AbandonedError


def usable_cores() -> int:
    """Cores that this process may use, by its affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int
) -> Generator[Result, None, None]:
    """Apply a function to items in threads; results come in order, at most `ahead` of them waiting.

    Closing the generator cancels pending calls, and lets running ones stop by `raise_if_abandoned`.
    """
    abandoned = threading.Event()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, "ahead", heed_abandonment, (abandoned,)) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            abandoned.set()
            for future in waiting:
                future.cancel()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS and LAPACK in a single thread.

    Threads that share a product wait for each other, on a busy machine longer than they work.
    """
    with _find_libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
        yield


@contextmanager
def multiplying_workers() -> Iterator[int]:
    """The number of threads to multiply matrices in, each product in a single thread."""
    with single_threaded_blas():
        yield min(usable_cores(), _MOST_MULTIPLYING)


@lru_cache(maxsize=1)
def _find_libraries(modules: int) -> ThreadpoolController:
    """The BLAS libraries of this process; searched again (milliseconds) when modules were imported."""
    from threadpoolctl import ThreadpoolController  # not needed by a single search

    return ThreadpoolController()
