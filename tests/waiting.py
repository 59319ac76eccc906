"""Waiting for what comes about in another thread or process."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(ask: Callable[[], Found], *, seconds: float = 60) -> Found:
    """What is asked for, as soon as it is true: the question is put again and again."""
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, f"nothing came in {seconds:g} seconds"
        time.sleep(0.02)
    return found
