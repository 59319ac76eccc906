from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from retrieval_app.serving.addresses import group_address
from retrieval_app.serving.bounded_pool import BoundedPool, asking
from retrieval_app.serving.errors import BusyError


@pytest.fixture
def pool() -> Iterator[BoundedPool]:
    opened = BoundedPool(1, name="of-the-test", capacity=10)
    yield opened
    opened.close()


def test_who_asks_for_much_keeps_nobody_waiting_who_asks_for_little(pool: BoundedPool) -> None:
    go_on, done = threading.Event(), list[str]()
    futures: list[Future[object]] = [pool.submit(lambda: go_on.wait(20))]

    def ask(address: str, count: int) -> None:
        asking.set(address)
        for number in range(count):
            futures.append(pool.submit(lambda name=f"{address}{number}": done.append(name)))  # type: ignore[misc]

    for address, count in (("a", 5), ("b", 2), ("c", 1)):
        contextvars.Context().run(ask, address, count)
    go_on.set()
    for future in futures:
        future.result(20)
    assert done == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_what_is_cancelled_or_fails_leaves_its_place_to_the_next(pool: BoundedPool) -> None:
    go_on = threading.Event()
    running = pool.submit(lambda: go_on.wait(20))
    cancelled, failing, last = pool.submit(list), pool.submit(lambda: 1 // 0), pool.submit(dict)
    assert cancelled.cancel()
    go_on.set()
    assert running.result(20)
    assert isinstance(failing.exception(20), ZeroDivisionError)
    assert last.result(20) == {}
    assert pool.count == 0


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


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "a name", False),
    ],
)
def test_an_address_is_what_one_subscriber_has(one: str, other: str, are_same: bool) -> None:
    assert (group_address(one) == group_address(other)) == are_same
