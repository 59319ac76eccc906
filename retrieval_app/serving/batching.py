"""Request batching: a few threads answer requests that wait at the same time together.

Tasks wait in lanes. A free worker takes the oldest task of the first lane that has any, and with it the other tasks of
the same batch.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from retrieval_app.serving.errors import BusyError

Task = TypeVar("Task")
Answer = TypeVar("Answer")
_ENDS = "the server is shutting down"


@dataclass(slots=True)
class _Waiting(Generic[Task, Answer]):
    task: Task
    key: Hashable
    deadline: float
    future: Future[Answer]


@dataclass(slots=True)
class Lane(Generic[Task, Answer]):
    """Queue of tasks of one kind.

    `answer` gives an answer or an error for each of at most `most` tasks with equal keys; `capacity` tasks may wait.
    """

    name: str
    answer: Callable[[Sequence[Task]], Sequence[Answer | Exception]]
    key: Callable[[Task], Hashable]
    most: int
    capacity: int
    waiting: deque[_Waiting[Task, Answer]] = field(default_factory=deque)
    refused: int = 0
    batches: int = 0
    answered: int = 0

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
    """Threads that answer the tasks of some lanes, those of the first lane first."""

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
        """The future of a task's answer; no lane is full for a request that `is_begun`, as the model has run for it."""
        future = Future[Answer]()
        with self._changed:
            if self._closed:
                raise BusyError(_ENDS)
            if not is_begun and len(lane.waiting) >= lane.capacity:
                lane.refused += 1
                raise BusyError("the server is busy; try again in a moment")
            lane.waiting.append(_Waiting(task, lane.key(task), time.monotonic() + timeout_s, future))
            self._changed.notify()
        return future

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Finish running batches, refuse waiting tasks, and end the threads."""
        with self._changed:
            self._closed = True
            waiting = [one for lane in self._lanes for one in lane.waiting]
            for lane in self._lanes:
                lane.waiting.clear()
            self._changed.notify_all()
        for one in waiting:
            if one.future.set_running_or_notify_cancel():  # else nobody waits for it any more
                one.future.set_exception(BusyError(_ENDS))
        for thread in self._threads:
            thread.join(timeout_s)

    def _work(self) -> None:
        while (found := self._next_batch()) is not None:
            _answer(*found)
            del found  # an idle thread keeps no version of the gallery open

    def _next_batch(self) -> tuple[Lane[Any, Any], list[_Waiting[Any, Any]]] | None:
        with self._changed:
            while (lane := next((lane for lane in self._lanes if lane.waiting), None)) is None:
                if self._closed:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return lane, lane.take(free=1 + self._idle)


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
    lane.batches += 1
    lane.answered += len(alive)
    for waiting, answer in zip(alive, answers, strict=True):
        if isinstance(answer, Exception):
            waiting.future.set_exception(answer)
        else:
            waiting.future.set_result(answer)
