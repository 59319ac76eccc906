import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from index.embedding.engine import ByteBudget


def test_threads_never_hold_more_than_the_budget_but_for_one_that_is_alone() -> None:
    budget, lock, held = ByteBudget(100), threading.Lock(), list[int]()

    def work(size_bytes: int) -> None:
        with budget.hold(size_bytes):
            with lock:
                held.append(size_bytes)
                assert sum(held) <= 100 or held == [size_bytes]
            threading.Event().wait(0.001)
            with lock:
                held.remove(size_bytes)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, [30, 60, 90, 150, 10, 40] * 20))
    assert held == []


def test_what_fits_is_held_at_the_same_time() -> None:
    budget, both = ByteBudget(100), threading.Barrier(2, timeout=20)

    def work(_: int) -> None:
        with budget.hold(50):
            both.wait()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))


def test_an_error_gives_the_room_back() -> None:
    budget = ByteBudget(100)
    with pytest.raises(KeyError), budget.hold(100):
        raise KeyError
    with budget.hold(100):
        pass
