from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from retrieval_app.serving.batching import Lane, Workers, _Waiting
from retrieval_app.serving.errors import BusyError


class _Gate:
    """A lane whose answers wait until they are let through."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []

    def answer(self, tasks: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(tasks))
        self.entered.set()
        assert self.open.wait(20)
        return [ValueError(str(task)) if task < 0 else 10 * task for task in tasks]


def _lane(gate: _Gate, *, most: int = 8, capacity: int = 100) -> Lane[int, int]:
    return Lane("numbers", gate.answer, lambda task: task % 2, most=most, capacity=capacity)


def _occupy(gate: _Gate, lane: Lane[int, int]) -> tuple[Workers, Future[int]]:
    """One worker that is held by its first task, and the answer to come."""
    workers = Workers([lane], threads=1)
    running = workers.submit(lane, 0, timeout_s=20)
    assert gate.entered.wait(20)
    return workers, running


def _close(workers: Workers, gate: _Gate, waiting: Future[int]) -> None:
    """Close them while a task runs; what waits is refused at once, and then the one that runs is let through."""
    closing = threading.Thread(target=workers.close)
    closing.start()
    with pytest.raises(BusyError, match="shutting down"):
        waiting.result(20)
    gate.open.set()
    closing.join(20)


def test_what_waits_while_a_worker_is_busy_is_answered_together_by_key() -> None:
    gate = _Gate()
    lane = _lane(gate)
    workers, first = _occupy(gate, lane)
    others = [workers.submit(lane, task, timeout_s=20) for task in (1, 2, 3, 4, 5)]
    gate.open.set()
    assert [future.result(20) for future in (first, *others)] == [0, 10, 20, 30, 40, 50]
    assert gate.batches == [[0], [1, 3, 5], [2, 4]]
    workers.close()


def test_a_batch_has_at_most_its_size() -> None:
    gate = _Gate()
    lane = _lane(gate, most=2)
    workers = Workers([lane], threads=1)
    futures = [workers.submit(lane, 0, timeout_s=20)]
    assert gate.entered.wait(20)
    futures += [workers.submit(lane, task, timeout_s=20) for task in (2, 4, 6, 8, 10)]
    gate.open.set()
    assert [future.result(20) for future in futures] == [0, 20, 40, 60, 80, 100]
    assert max(map(len, gate.batches)) == 2
    workers.close()


def test_a_full_lane_refuses_and_says_when_to_come_again() -> None:
    gate = _Gate()
    lane = _lane(gate, capacity=2)
    workers, running = _occupy(gate, lane)
    waiting = [workers.submit(lane, task, timeout_s=20) for task in (1, 2)]
    with pytest.raises(BusyError, match="busy") as caught:
        workers.submit(lane, 3, timeout_s=20)
    assert caught.value.retry_after_s >= 1
    assert lane.refused == 1
    gate.open.set()
    assert [future.result(20) for future in (running, *waiting)] == [0, 10, 20]
    workers.close()


def test_a_task_that_waited_too_long_is_not_begun() -> None:
    gate = _Gate()
    lane = _lane(gate)
    workers, running = _occupy(gate, lane)
    late = workers.submit(lane, 2, timeout_s=-1)
    gate.open.set()
    assert running.result(20) == 0
    with pytest.raises(BusyError, match="too long"):
        late.result(20)
    assert gate.batches == [[0]]
    workers.close()


def test_an_error_belongs_to_its_own_task() -> None:
    gate = _Gate()
    gate.open.set()
    lane = _lane(gate)
    workers = Workers([lane], threads=1)
    with pytest.raises(ValueError, match="-3"):
        workers.submit(lane, -3, timeout_s=20).result(20)
    assert workers.submit(lane, 3, timeout_s=20).result(20) == 30
    workers.close()


def test_a_failing_lane_fails_its_batch_and_not_the_worker() -> None:
    def fail(tasks: Sequence[int]) -> list[int | Exception]:
        raise KeyError("no such thing")

    broken: Lane[int, int] = Lane("broken", fail, lambda task: 0, most=4, capacity=4)
    gate = _Gate()
    gate.open.set()
    sound = _lane(gate)
    workers = Workers([broken, sound], threads=1)
    with pytest.raises(KeyError):
        workers.submit(broken, 1, timeout_s=20).result(20)
    assert workers.submit(sound, 1, timeout_s=20).result(20) == 10
    workers.close()


def test_closing_answers_what_runs_and_refuses_what_waits() -> None:
    gate = _Gate()
    lane = _lane(gate)
    workers, running = _occupy(gate, lane)
    waiting = workers.submit(lane, 2, timeout_s=20)
    _close(workers, gate, waiting)
    assert running.result(20) == 0
    with pytest.raises(BusyError, match="shutting down"):
        workers.submit(lane, 4, timeout_s=20)


def test_the_first_lane_goes_first() -> None:
    gate, order = _Gate(), list[str]()
    plain = _lane(gate)

    def note(name: str) -> Lane[int, int]:
        def answer(tasks: Sequence[int]) -> list[int | Exception]:
            order.append(name)
            return list(tasks)

        return Lane(name, answer, lambda task: 0, most=4, capacity=4)

    first, second = note("first"), note("second")
    workers = Workers([plain, first, second], threads=1)
    running = workers.submit(plain, 0, timeout_s=20)
    assert gate.entered.wait(20)
    futures = [workers.submit(second, 1, timeout_s=20), workers.submit(first, 1, timeout_s=20)]
    gate.open.set()
    for future in (running, *futures):
        future.result(20)
    assert order == ["first", "second"]
    workers.close()


def test_closing_resolves_what_waits_even_where_somebody_gave_up() -> None:
    gate = _Gate()
    lane = _lane(gate)
    workers, running = _occupy(gate, lane)
    given_up, waiting = (workers.submit(lane, task, timeout_s=20) for task in (2, 4))
    assert given_up.cancel()
    gate.open.set()
    workers.close()
    with pytest.raises(BusyError, match="shutting down"):
        waiting.result(20)
    assert running.result(20) == 0


def test_what_follows_from_an_answer_goes_before_what_waits_in_later_lanes() -> None:
    gate, order = _Gate(), list[tuple[str, int]]()

    def note(name: str) -> Lane[int, int]:
        def answer(tasks: Sequence[int]) -> list[int | Exception]:
            order.extend((name, task) for task in tasks)
            return [task + 1 for task in tasks]

        return Lane(name, answer, lambda task: 0, most=1, capacity=4)

    plain, searches, photos = _lane(gate), note("searches"), note("photos")
    workers = Workers([plain, searches, photos], threads=1)
    running = workers.submit(plain, 0, timeout_s=20)
    assert gate.entered.wait(20)
    futures = [
        workers.submit_then(photos, 10 * number, lambda vector: (searches, vector), timeout_s=20)
        for number in (1, 2)
    ]
    gate.open.set()
    assert [future.result(20) for future in (running, *futures)] == [0, 12, 22]
    assert order == [("photos", 10), ("searches", 11), ("photos", 20), ("searches", 21)]
    assert (photos.answered, searches.answered) == (2, 2)
    workers.close()


def test_what_follows_is_not_asked_for_where_the_task_itself_fails() -> None:
    gate = _Gate()
    gate.open.set()
    lane, followed = _lane(gate), list[int]()

    def follow(answer: int) -> tuple[Lane[int, int], int]:
        followed.append(answer)
        return lane, answer

    workers = Workers([lane], threads=1)
    with pytest.raises(ValueError, match="-3"):
        workers.submit_then(lane, -3, follow, timeout_s=20).result(20)
    assert not followed
    assert workers.submit_then(lane, 3, follow, timeout_s=20).result(20) == 300
    workers.close()


def test_an_error_on_the_way_to_what_follows_belongs_to_its_own_task() -> None:
    gate = _Gate()
    gate.open.set()
    lane = _lane(gate)

    def fail(answer: int) -> tuple[Lane[int, int], int]:
        raise KeyError(answer)

    workers = Workers([lane], threads=1)
    with pytest.raises(KeyError, match="30"):
        workers.submit_then(lane, 3, fail, timeout_s=20).result(20)
    assert workers.submit(lane, 3, timeout_s=20).result(20) == 30
    workers.close()


def test_what_would_follow_is_refused_once_the_workers_close() -> None:
    gate = _Gate()
    lane = _lane(gate)
    workers = Workers([lane], threads=1)
    both = workers.submit_then(lane, 0, lambda answer: (lane, answer), timeout_s=20)
    assert gate.entered.wait(20)
    waiting = workers.submit(lane, 1, timeout_s=20)
    _close(workers, gate, waiting)
    with pytest.raises(BusyError, match="shutting down"):
        both.result(20)
    assert gate.batches == [[0]]


def test_a_task_that_was_given_up_has_nothing_that_follows() -> None:
    gate = _Gate()
    lane, followed = _lane(gate), list[int]()

    def follow(answer: int) -> tuple[Lane[int, int], int]:
        followed.append(answer)
        return lane, answer

    workers, running = _occupy(gate, lane)
    assert workers.submit_then(lane, 2, follow, timeout_s=20).cancel()
    gate.open.set()
    assert running.result(20) == 0
    workers.close()
    assert not followed


def test_a_worker_leaves_a_share_to_those_that_are_free_alone() -> None:
    gate = _Gate()
    lane = _lane(gate)
    for task in (0, 2, 4, 6):
        lane.waiting.append(_Waiting(task, 0, 0.0, Future()))
    assert [waiting.task for waiting in lane.take(free=2)] == [0, 2]
    assert [waiting.task for waiting in lane.take(free=1)] == [4, 6]


def test_closing_refuses_what_follows_and_waits_still() -> None:
    gate = _Gate()
    lane = _lane(gate)
    workers, both = Workers([lane], threads=0), Future[int]()
    both.set_running_or_notify_cancel()
    lane.waiting.append(_Waiting(1, 1, 0.0, both, is_begun=True))
    workers.close()
    with pytest.raises(BusyError, match="shutting down"):
        both.result(20)


def test_what_follows_too_late_is_not_begun() -> None:
    gate = _Gate()
    gate.open.set()
    lane, late = _lane(gate), _lane(gate)
    workers, both = Workers([late, lane], threads=1), Future[int]()
    both.set_running_or_notify_cancel()
    late.waiting.append(_Waiting(1, 1, 0.0, both, is_begun=True))
    assert workers.submit(lane, 3, timeout_s=20).result(20) == 30
    with pytest.raises(BusyError, match="too long"):
        both.result(20)
    workers.close()
