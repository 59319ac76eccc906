"""One thread for each product of matrices, where the work around them runs in threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from index.ahead import usable_cores

_MOST_WORKERS = 16  # each holds some 30 MB


@contextmanager
def multiplying_workers() -> Iterator[int]:
    """How many threads shall multiply matrices with NumPy at the same time.

    Each product is left to its thread: threads that share a product wait for each other, and on a busy machine longer
    than they work.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield min(usable_cores(), _MOST_WORKERS)
