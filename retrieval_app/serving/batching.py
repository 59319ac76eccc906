"""Requests that come at the same time are answered together, by some threads.

Tasks wait in lanes. A free worker takes from the first lane that has any, with the oldest task every other one that
can be answered with it. It waits for more only where tasks have lately come closer together than it would wait. What
follows from an answer, as a search from a photo's vector, is put into its lane by the worker that has the answer.
"""

from __future__ import annotations

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
_MEMORY = 0.2  # share of the newest gap in the average of the gaps between tasks


@dataclass(slots=True)
class _Waiting(Generic[Task, Answer]):
    """A task, and the future of its answer, or of what follows from that where `then` says what it is."""

    task: Task
    key: Hashable
    deadline: float
    future: Future[Any]
    then: Callable[[Answer], tuple[Lane[Any, Any], Any]] | None = None
    is_begun: bool = False  # its future runs already


@dataclass(slots=True)
class Lane(Generic[Task, Answer]):
    """Tasks of one kind.

    Attributes:
        name: for messages and metrics.
        answer: gives an answer, or the error to raise, for each of some tasks of equal keys.
        key: tasks of equal keys may be answered together.
        most: tasks answered at once.
        capacity: tasks that may wait.
        wait_s: how long a batch may wait for more.
    """

    name: str
    answer: Callable[[Sequence[Task]], Sequence[Answer | Exception]]
    key: Callable[[Task], Hashable]
    most: int
    capacity: int
    wait_s: float = 0.0
    waiting: deque[_Waiting[Task, Answer]] = field(default_factory=deque)
    gap_s: float = 1.0  # average time between two tasks
    last_s: float = 0.0
    refused: int = 0
    batches: int = 0
    answered: int = 0

    def take(self, *, free: int) -> list[_Waiting[Task, Answer]]:
        """The oldest task and those that can be answered with it, at most `most`, and a share for each free worker."""
        key, left = self.waiting[0].key, deque[_Waiting[Task, Answer]]()
        taken: list[_Waiting[Task, Answer]] = []
        most = min(self.most, -(-len(self.waiting) // free))
        while self.waiting and len(taken) < most:
            waiting = self.waiting.popleft()
            (taken if waiting.key == key else left).append(waiting)
        left.extend(self.waiting)
        self.waiting = left
        return taken

    def should_wait(self) -> bool:
        """Whether more tasks are likely to come in time."""
        return self.gap_s < self.wait_s and len(self.waiting) < self.most


class Workers:
    """Threads that answer the tasks of some lanes, the first lane's first."""

    def __init__(self, lanes: Sequence[Lane[Any, Any]], *, threads: int) -> None:
        self._lanes = lanes
        self._changed = threading.Condition()
        self._closed = False
        self._idle = self._gathering = 0  # workers with nothing to do, and those that wait for a fuller batch
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_alone(self) -> bool:
        """Whether all workers but the one that asks have nothing to do."""
        return self._idle >= len(self._threads) - 1

    def submit(
        self,
        lane: Lane[Task, Answer],
        task: Task,
        *,
        timeout_s: float,
        then: Callable[[Answer], tuple[Lane[Any, Any], Any]] | None = None,
    ) -> Future[Any]:
        """The answer to come: the lane's, or of the lane and task that `then` gives for it, never refused.

        The worker calls `then`; what it raises, the future does.

        Raises:
            BusyError: the lane is full, or the workers are closed.
        """
        now, future = time.monotonic(), Future[Any]()
        with self._changed:
            if self._closed:
                raise BusyError(_ENDS)
            if len(lane.waiting) >= lane.capacity:
                lane.refused += 1
                raise BusyError("the server is busy; try again in a moment")
            lane.gap_s += _MEMORY * (min(now - lane.last_s, 1.0) - lane.gap_s)
            lane.last_s = now
            lane.waiting.append(_Waiting(task, lane.key(task), now + timeout_s, future, then))
            self._changed.notify()
        return future

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Answer what is under way, refuse what waits, and end the threads."""
        with self._changed:
            self._closed = True
            waiting = [one for lane in self._lanes for one in lane.waiting]
            for lane in self._lanes:
                lane.waiting.clear()
            self._changed.notify_all()
        for one in waiting:
            if one.is_begun or one.future.set_running_or_notify_cancel():  # else nobody waits for it any more
                one.future.set_exception(BusyError(_ENDS))
        for thread in self._threads:
            thread.join(timeout_s)

    def _work(self) -> None:
        while (found := self._next_batch()) is not None:
            self._follow(_answer(*found))
            del found  # a thread that has nothing to do keeps no version of the gallery open

    def _follow(self, answered: Sequence[tuple[_Waiting[Any, Any], Any]]) -> None:
        """Let what follows from answers wait in its lane; this worker looks there next."""
        for waiting, answer in answered:
            try:
                lane, task = waiting.then(answer)  # type: ignore[misc]
                following = _Waiting[Any, Any](
                    task, lane.key(task), waiting.deadline, waiting.future, is_begun=True
                )
                with self._changed:
                    if self._closed:
                        raise BusyError(_ENDS)
                    lane.waiting.append(following)
            except Exception as error:  # noqa: BLE001 - as `_answer`
                waiting.future.set_exception(error)

    def _next_batch(self) -> tuple[Lane[Any, Any], list[_Waiting[Any, Any]]] | None:
        with self._changed:
            while True:
                lane = next((lane for lane in self._lanes if lane.waiting), None)
                if lane is None:
                    if self._closed:
                        return None
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                    continue
                until = lane.waiting[0].deadline if not lane.wait_s else time.monotonic() + lane.wait_s
                self._gathering += 1
                while lane.waiting and lane.should_wait() and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
                self._gathering -= 1
                if lane.waiting:  # another worker may have taken them meanwhile
                    batch = lane.take(free=1 + self._idle + self._gathering)
                    if any(other.waiting for other in self._lanes):
                        self._changed.notify()  # a worker that saw one task is not to leave the others lying
                    return lane, batch


def _answer(lane: Lane[Any, Any], batch: Sequence[_Waiting[Any, Any]]) -> list[tuple[_Waiting[Any, Any], Any]]:
    """Answer those of a batch that somebody waits for and that are not too late; those whose answers are followed."""
    now, alive, followed = time.monotonic(), list[_Waiting[Any, Any]](), list[tuple[_Waiting[Any, Any], Any]]()
    for waiting in batch:
        if not waiting.is_begun and not waiting.future.set_running_or_notify_cancel():
            continue
        if waiting.deadline < now:
            waiting.future.set_exception(BusyError("the server is busy: this took too long to begin"))
        else:
            alive.append(waiting)
    if not alive:
        return []
    try:
        answers = lane.answer([waiting.task for waiting in alive])
    # Whatever it is belongs to those who asked: they raise it, and the worker goes on, as in concurrent.futures.
    except Exception as error:  # noqa: BLE001
        answers = [error] * len(alive)
    lane.batches += 1
    lane.answered += len(alive)
    for waiting, answer in zip(alive, answers, strict=True):
        if isinstance(answer, Exception):
            waiting.future.set_exception(answer)
        elif waiting.then is not None:
            followed.append((waiting, answer))
        else:
            waiting.future.set_result(answer)
    return followed
