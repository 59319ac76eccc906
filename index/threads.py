"""Threads: usable cores, an ordered parallel map, abandonment, BLAS thread limits, and an LRU cache."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_MOST_MULTIPLYING = 16  # each holds some 30 MB
_local = threading.local()


class AbandonedError(Exception):
    """Raised in a thread that its caller has given up."""


def stop_on_event(abandoned: threading.Event) -> None:
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
    with ThreadPoolExecutor(workers, "ahead", stop_on_event, (abandoned,)) as pool:
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
    """BLAS and LAPACK in one thread: threads that share a product wait for each other, often longer than they work."""
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


class RecentlyUsed(Generic[Key, Value]):
    """An LRU cache of values whose sizes (by default 1) sum up to at most `capacity`; safe among threads."""

    def __init__(self, capacity: int, *, size: Callable[[Value], int] = lambda _: 1) -> None:
        self._capacity, self._size, self._used = capacity, size, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            if key in self._values:
                self._used -= self._size(self._values.pop(key))
            self._values[key] = value
            self._used += self._size(value)
            while self._used > self._capacity and self._values:
                self._used -= self._size(self._values.popitem(last=False)[1])
