"""Threads that multiply matrices: each on its own, and afterwards as before."""

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from index.threads import multiplying_workers


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
