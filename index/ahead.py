"""Work done ahead of its consumer: threads, in order, with a bounded number of results waiting."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int
) -> Generator[Result, None, None]:
    """Apply a function to items in threads, and give the results in the items' order.

    At most `ahead` results wait, so memory is bounded whatever the consumer's pace. Closing the generator cancels what
    has not begun. What the function raises is raised here.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="ahead") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
