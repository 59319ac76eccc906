"""Threads of a server: workers that answer waiting tasks in batches, and bounded pools whose clients take turns."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from index.threads import AbandonedError, stop_on_event
from retrieval_app.serving.errors import BusyError

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Value = TypeVar("Value")
_JOIN_S = 5.0  # that a running batch may still take at the end
_ENDS = "the server is shutting down; try again when it is back"
client_address: ContextVar[str] = ContextVar("client_address", default="")
"""The client address of the current request."""


@dataclass(slots=True)
class _Waiting(Generic[Task, Answer]):
    task: Task
    key: Hashable
    deadline: float
    future: Future[Answer]


@dataclass(slots=True)
class Lane(Generic[Task, Answer]):
    """Queue of tasks of one kind; `answer` answers at most `most` tasks of equal keys at once, `capacity` may wait."""

    answer: Callable[[Sequence[Task]], Sequence[Answer | Exception]]
    key: Callable[[Task], Hashable]
    most: int
    capacity: int
    waiting: deque[_Waiting[Task, Answer]] = field(default_factory=deque)

    def take(self, *, free: int) -> list[_Waiting[Task, Answer]]:
        """The next batch, which leaves their share to free workers."""
        key, left = self.waiting[0].key, deque[_Waiting[Task, Answer]]()
        taken: list[_Waiting[Task, Answer]] = []
        most = min(self.most, -(-len(self.waiting) // free))
        while self.waiting and len(taken) < most:
            waiting = self.waiting.popleft()
            (taken if waiting.key == key else left).append(waiting)
        left.extend(self.waiting)
        self.waiting = left
        return taken


class Workers:
    """Threads that answer the tasks of some lanes, the first lane first, with all waiting tasks of one batch."""

    def __init__(self, lanes: Sequence[Lane[Any, Any]], *, threads: int) -> None:
        self._lanes = lanes
        self._changed = threading.Condition()
        self._closed = False
        self._idle = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_alone(self) -> bool:
        """Whether all workers but the calling one have nothing to do."""
        return self._idle >= len(self._threads) - 1

    def submit(
        self, lane: Lane[Task, Answer], task: Task, *, timeout_s: float, is_begun: bool = False
    ) -> Future[Answer]:
        """The future of a task's answer; one that `is_begun` is never refused: its embedding is already computed."""
        future = Future[Answer]()
        with self._changed:
            if self._closed:
                raise BusyError(_ENDS)
            if not is_begun and len(lane.waiting) >= lane.capacity:
                raise BusyError("the server is busy; try again in a moment")
            lane.waiting.append(_Waiting(task, lane.key(task), time.monotonic() + timeout_s, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Finish running batches, refuse waiting tasks, and end the threads."""
        with self._changed:
            self._closed = True
            waiting = [one for lane in self._lanes for one in lane.waiting]
            for lane in self._lanes:
                lane.waiting.clear()
            self._changed.notify_all()
        for one in waiting:
            if one.future.set_running_or_notify_cancel():  # else its request has ended
                one.future.set_exception(BusyError(_ENDS))
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                while (lane := next((lane for lane in self._lanes if lane.waiting), None)) is None:
                    if self._closed:
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                batch = lane.take(free=1 + self._idle)
            _answer(lane, batch)
            del batch  # an idle thread keeps no version of the gallery open


def _answer(lane: Lane[Any, Any], batch: Sequence[_Waiting[Any, Any]]) -> None:
    """Answer the tasks of a batch that are neither cancelled nor late."""
    now, alive = time.monotonic(), list[_Waiting[Any, Any]]()
    for waiting in batch:
        if not waiting.future.set_running_or_notify_cancel():
            continue
        if waiting.deadline < now:
            waiting.future.set_exception(BusyError("the server is busy: this took too long to begin"))
        else:
            alive.append(waiting)
    if not alive:
        return
    try:
        answers = lane.answer([waiting.task for waiting in alive])
    # The requests raise whatever error this is, and the worker goes on, as in concurrent.futures.
    except Exception as error:  # noqa: BLE001
        answers = [error] * len(alive)
    for waiting, answer in zip(alive, answers, strict=True):
        if isinstance(answer, Exception):
            waiting.future.set_exception(answer)
        else:
            waiting.future.set_result(answer)


class BoundedPool:
    """Threads that call functions, one of each client address in turn; `capacity` calls may wait or run."""

    def __init__(self, threads: int, *, name: str, capacity: int) -> None:
        self._abandoned = threading.Event()
        self._threads = ThreadPoolExecutor(threads, name, stop_on_event, (self._abandoned,))
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._last = ""
        self._capacity, self._count, self._lock = capacity, 0, threading.Lock()

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
        """Refuse new calls, and end the threads without waiting for running calls."""
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
