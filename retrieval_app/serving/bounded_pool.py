"""Bounded thread pool whose clients take turns by their address."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from index.threads import AbandonedError, heed_abandonment
from retrieval_app.serving.errors import BusyError

Value = TypeVar("Value")
_ENDS = "the server ends; try again when it is back"
client_address: ContextVar[str] = ContextVar("client_address", default="")
"""The client address of the current request."""


class BoundedPool:
    """Threads that call functions, one of each client address in turn; `capacity` calls may wait or run."""

    def __init__(self, threads: int, *, name: str, capacity: int) -> None:
        self._abandoned = threading.Event()
        self._threads = ThreadPoolExecutor(threads, name, heed_abandonment, (self._abandoned,))
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._last = ""
        self._capacity, self._count, self._lock = capacity, 0, threading.Lock()

    @property
    def count(self) -> int:
        return self._count

    def submit(self, function: Callable[[], Value]) -> Future[Value]:
        """The future of a function's value; BusyError where the pool is full. The future has one after `refuse`."""
        future: Future[Value] = Future()
        with self._lock:
            if self._count >= self._capacity:
                raise BusyError("the server is busy; try again in a moment")
            self._count += 1
            self._waiting.setdefault(client_address.get(), deque()).append((future, function))
        future.add_done_callback(self._end)
        self._threads.submit(self._call_next)
        return future

    def refuse(self) -> None:
        """Begin no further call, abandon running decodes, and refuse waiting calls."""
        self._abandoned.set()

    def close(self) -> None:
        """As `refuse`, and end the threads without waiting for running calls."""
        self.refuse()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = [future for waiting in self._waiting.values() for future, _ in waiting]
        for future in left:
            future.cancel()

    def _call_next(self) -> None:
        """Make the oldest call of the address whose turn it is: never one address twice while another waits."""
        with self._lock:
            address = self._last = next((one for one in self._waiting if one != self._last), self._last)
            waiting = self._waiting.pop(address)
            future, function = waiting.popleft()
            if waiting:
                self._waiting[address] = waiting
        if not future.set_running_or_notify_cancel():
            return
        try:
            if self._abandoned.is_set():
                raise BusyError(_ENDS)
            value = function()
        except AbandonedError:
            future.set_exception(BusyError(_ENDS))
        except BaseException as error:  # noqa: BLE001 - as every executor does
            future.set_exception(error)
        else:
            future.set_result(value)
        finally:
            del future, function  # an error holds this frame, and must not hold itself by it

    def _end(self, _: Future[Any]) -> None:
        with self._lock:
            self._count -= 1
