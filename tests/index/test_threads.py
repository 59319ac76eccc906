"""Threads that multiply matrices: each on its own, and afterwards as before; the LRU cache."""

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from index.threads import RecentlyUsed, multiplying_workers


def _blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_each_product_is_left_to_its_thread_and_others_are_not_any_more() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))
    for threads in (2, 3):  # the second time libraries are known
        with threadpool_limits(limits=threads, user_api="blas"):
            before = _blas_threads()
            assert max(before) > 1
            with multiplying_workers() as workers:
                assert workers >= 1
                assert _blas_threads() == {1}
            assert _blas_threads() == before


def test_a_library_that_came_in_meanwhile_is_heeded_too() -> None:
    with multiplying_workers():
        pass
    import scipy.linalg  # noqa: F401 - brings a BLAS of its own

    with threadpool_limits(limits=2, user_api="blas"), multiplying_workers():
        assert _blas_threads() == {1}


def test_the_values_used_least_recently_go_first() -> None:
    kept: RecentlyUsed[str, int] = RecentlyUsed(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [name in kept for name in "abc"] == [True, False, True]
    assert kept.get("b") is None
    assert len(kept) == 2


def test_sizes_are_counted_and_replaced_values_count_once() -> None:
    kept: RecentlyUsed[str, bytes] = RecentlyUsed(10, size=len)
    for _ in range(5):
        kept.put("a", b"1234")
    kept.put("b", b"123456")
    assert (kept.get("a"), kept.get("b")) == (b"1234", b"123456")
    kept.put("c", b"1")
    assert ("a" in kept, "b" in kept, "c" in kept) == (False, True, True)
