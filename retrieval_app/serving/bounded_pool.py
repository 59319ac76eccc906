"""A few threads for one kind of work, and room for so much of it to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from index.ahead import heed_abandonment
from retrieval_app.serving.errors import BusyError

Value = TypeVar("Value")


class BoundedPool:
    """Threads that call functions one after the other.

    Args:
        threads: as many as work at once.
        name: of the threads.
        capacity: calls that wait or are under way; one more is refused.
    """

    def __init__(self, threads: int, *, name: str, capacity: int) -> None:
        self._abandoned = threading.Event()
        self._threads = ThreadPoolExecutor(threads, name, heed_abandonment, (self._abandoned,))
        self._refuses = False
        self._capacity, self._count, self._lock = capacity, 0, threading.Lock()

    @property
    def count(self) -> int:
        """Calls that wait or are under way."""
        return self._count

    def submit(self, function: Callable[[], Value]) -> Future[Value]:
        """What a thread will give.

        Raises:
            BusyError: too many calls wait, or nothing more is begun; the latter is also told by the future.
        """

        def begin() -> Value:
            if self._refuses:
                raise BusyError("the server ends; try again when it is back")
            return function()

        with self._lock:
            if self._count >= self._capacity:
                raise BusyError("the server is busy; try again in a moment")
            self._count += 1
        future = self._threads.submit(begin)
        future.add_done_callback(self._end)
        return future

    def refuse(self) -> None:
        """Begin nothing more, and tell those that wait."""
        self._refuses = True

    def close(self) -> None:
        """Begin nothing more; what runs is not waited for, and a decode is given up."""
        self._abandoned.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _end(self, _: Future[Any]) -> None:
        with self._lock:
            self._count -= 1
