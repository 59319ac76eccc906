import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from index.network.public_addresses import group_address
from retrieval_app.serving.batching import BoundedPool, Lane, Workers, _Waiting, client_address
from retrieval_app.serving.errors import BusyError

Answer = Callable[[Sequence[int]], list[int | Exception]]


@dataclass
class Gate:
    """A lane whose answers wait until they are let through."""

    open: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    batches: list[list[int]] = field(default_factory=list)

    def answer(self, tasks: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(tasks))
        self.entered.set()
        assert self.open.wait(20)
        return [ValueError(str(task)) if task < 0 else 10 * task for task in tasks]


def make_lane(answer: Answer, *, most: int = 8, capacity: int = 100, name: str = "numbers") -> Lane[int, int]:
    return Lane(answer, lambda task: task % 2, most=most, capacity=capacity)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def lane(gate: Gate) -> Lane[int, int]:
    return make_lane(gate.answer)


Work = Callable[..., Workers]


@pytest.fixture
def work(gate: Gate) -> Iterator[Work]:
    """One worker for these lanes, which are closed in the end."""
    made: list[Workers] = []

    def begin(*lanes: Lane[int, int], threads: int = 1) -> Workers:
        made.append(Workers(list(lanes), threads=threads))
        return made[-1]

    yield begin
    gate.open.set()
    for workers in made:
        workers.close()


def occupy(gate: Gate, workers: Workers, lane: Lane[int, int]) -> Future[int]:
    """Hold the worker by a task; the answer to come."""
    running = workers.submit(lane, 0, timeout_s=20)
    assert gate.entered.wait(20)
    return running


def close_while_one_runs(workers: Workers, gate: Gate, waiting: Future[int]) -> None:
    """What waits is refused at once, and then the one that runs is let through."""
    closing = threading.Thread(target=workers.close)
    closing.start()
    with pytest.raises(BusyError, match="shutting down"):
        waiting.result(20)
    gate.open.set()
    closing.join(20)


def test_waiting_tasks_are_answered_together_by_key(gate: Gate, lane: Lane[int, int], work: Work) -> None:
    workers = work(lane)
    futures = [occupy(gate, workers, lane)]
    futures += [workers.submit(lane, task, timeout_s=20) for task in (1, 2, 3, 4, 5)]
    gate.open.set()
    assert [future.result(20) for future in futures] == [0, 10, 20, 30, 40, 50]
    assert gate.batches == [[0], [1, 3, 5], [2, 4]]


def test_a_batch_has_at_most_its_size_and_leaves_a_share_to_workers_that_are_free(gate: Gate, work: Work) -> None:
    lane = make_lane(gate.answer, most=2)
    workers = work(lane)
    futures = [occupy(gate, workers, lane)]
    futures += [workers.submit(lane, task, timeout_s=20) for task in (2, 4, 6, 8, 10)]
    gate.open.set()
    assert [future.result(20) for future in futures] == [0, 20, 40, 60, 80, 100]
    assert max(map(len, gate.batches)) == 2
    shared = make_lane(gate.answer)
    shared.waiting.extend(_Waiting(task, 0, 0.0, Future()) for task in (0, 2, 4, 6))
    assert [[waiting.task for waiting in shared.take(free=free)] for free in (2, 1)] == [[0, 2], [4, 6]]


def test_a_full_lane_refuses_and_says_when_to_come_again(gate: Gate, work: Work) -> None:
    lane = make_lane(gate.answer, capacity=2)
    workers = work(lane)
    occupy(gate, workers, lane)
    waiting = [workers.submit(lane, task, timeout_s=20) for task in (1, 2)]
    with pytest.raises(BusyError, match="busy") as caught:
        workers.submit(lane, 3, timeout_s=20)
    assert caught.value.retry_after_s >= 1
    gate.open.set()
    assert [future.result(20) for future in waiting] == [10, 20]


def test_what_waited_too_long_is_not_begun(gate: Gate, lane: Lane[int, int], work: Work) -> None:
    workers = work(lane)
    running = occupy(gate, workers, lane)
    late = workers.submit(lane, 2, timeout_s=-1)
    gate.open.set()
    with pytest.raises(BusyError, match="too long"):
        late.result(20)
    assert running.result(20) == 0
    assert gate.batches == [[0]]


def test_an_error_belongs_to_its_own_task_or_batch(gate: Gate, lane: Lane[int, int], work: Work) -> None:
    def fail(_: object) -> list[int | Exception]:
        raise KeyError("no such thing")

    broken = make_lane(fail)
    workers = work(broken, lane)
    gate.open.set()
    with pytest.raises(KeyError):
        workers.submit(broken, 1, timeout_s=20).result(20)
    with pytest.raises(ValueError, match="-3"):
        workers.submit(lane, -3, timeout_s=20).result(20)
    assert workers.submit(lane, 3, timeout_s=20).result(20) == 30


def test_closing_answers_what_runs_and_refuses_what_waits(gate: Gate, lane: Lane[int, int], work: Work) -> None:
    workers = work(lane)
    running = occupy(gate, workers, lane)
    given_up, waiting = (workers.submit(lane, task, timeout_s=20) for task in (2, 4))
    assert given_up.cancel()
    close_while_one_runs(workers, gate, waiting)
    assert running.result(20) == 0
    with pytest.raises(BusyError, match="shutting down"):
        workers.submit(lane, 6, timeout_s=20)


def test_earlier_lanes_go_first(gate: Gate, lane: Lane[int, int], work: Work) -> None:
    order = list[tuple[str, int]]()

    def note(name: str) -> Lane[int, int]:
        def answer(tasks: Sequence[int]) -> list[int | Exception]:
            order.extend((name, task) for task in tasks)
            return [task + 1 for task in tasks]

        return make_lane(answer, most=1)

    searches, photos = note("searches"), note("photos")
    workers = work(lane, searches, photos)
    occupy(gate, workers, lane)
    futures = [workers.submit(photos, task, timeout_s=20) for task in (10, 20)]
    futures.append(workers.submit(searches, 5, timeout_s=20))
    gate.open.set()
    assert [future.result(20) for future in futures] == [11, 21, 6]
    assert order == [("searches", 5), ("photos", 10), ("photos", 20)]


@pytest.fixture
def pool() -> Iterator[BoundedPool]:
    opened = BoundedPool(1, name="of-the-test", capacity=10)
    yield opened
    opened.close()


def test_who_asks_for_much_keeps_nobody_waiting_who_asks_for_little(pool: BoundedPool) -> None:
    go_on, done = threading.Event(), list[str]()
    futures: list[Future[object]] = []
    contextvars.Context().run(
        lambda: (client_address.set("a"), futures.append(pool.submit(lambda: go_on.wait(20))))
    )  # who was just served is not served again before the others

    def ask(address: str, count: int) -> None:
        client_address.set(address)
        for number in range(count):
            futures.append(pool.submit(lambda name=f"{address}{number}": done.append(name)))  # type: ignore[misc]

    for address, count in (("a", 5), ("b", 2), ("c", 1)):
        contextvars.Context().run(ask, address, count)
    go_on.set()
    for future in futures:
        future.result(20)
    assert done == ["b0", "a0", "c0", "b1", "a1", "a2", "a3", "a4"]


def test_what_is_cancelled_or_fails_leaves_its_place_to_the_next(pool: BoundedPool) -> None:
    go_on = threading.Event()
    running = pool.submit(lambda: go_on.wait(20))
    cancelled, failing, last = pool.submit(list), pool.submit(lambda: 1 // 0), pool.submit(dict)
    assert cancelled.cancel()
    go_on.set()
    assert running.result(20)
    assert isinstance(failing.exception(20), ZeroDivisionError)
    assert last.result(20) == {}
    assert pool._count == 0


def test_one_call_more_than_there_is_room_for_is_refused_and_closing_tells_those_that_wait() -> None:
    pool, go_on = BoundedPool(1, name="of-the-test", capacity=3), threading.Event()
    began = threading.Event()
    running = pool.submit(lambda: began.set() or go_on.wait(20))  # type: ignore[func-returns-value]
    assert began.wait(20)
    waiting = [pool.submit(list) for _ in range(2)]
    with pytest.raises(BusyError, match="busy"):
        pool.submit(list)
    pool.close()
    assert all(future.cancelled() for future in waiting)
    go_on.set()
    assert running.result(20)


def test_an_address_is_what_one_subscriber_has() -> None:
    same = (("10.0.0.1", "::ffff:10.0.0.1"), ("2001:db8::1", "2001:db8::ffff:1"), ("fe80::1%eth0", "fe80::2%eth1"))
    others = (("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8:0:1::1"), ("", "a name"))
    assert all(group_address(one) == group_address(other) for one, other in same)
    assert not any(group_address(one) == group_address(other) for one, other in others)
