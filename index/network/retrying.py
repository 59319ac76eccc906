"""Another try after what may pass: exponential back-off with jitter, or as long as the server asks for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from index.network.remote_store import FetchError
from index.threads import raise_if_abandoned

Result = TypeVar("Result")

TRIES = 4
_local = threading.local()
MAX_WAIT_S = 60.0
"""The longest that a server's wish to be left alone is granted; who wants more is left alone for good."""
_FIRST_WAIT_S, _LOOK_S = 0.5, 0.1
_chance = random.SystemRandom()  # of its own: the usual one has a seed that people set


@contextmanager
def in_a_hurry() -> Iterator[None]:
    """In this thread nothing is tried twice, nor waited for long, as somebody looks at an empty place meanwhile."""
    before = is_hurried()
    _local.is_hurried = True
    try:
        yield
    finally:
        _local.is_hurried = before


def is_hurried() -> bool:
    """Whether this thread is `in_a_hurry`."""
    return getattr(_local, "is_hurried", False)


def retry(attempt: Callable[[], Result]) -> Result:
    """What an attempt gives, at the latest the fourth; in a hurry the first.

    Raises:
        FetchError: of the last attempt.
    """
    tries = 1 if is_hurried() else TRIES
    for number in range(1, tries + 1):
        try:
            return attempt()
        except FetchError as error:
            if not error.is_transient:
                raise
            if number == tries or error.wait_s > MAX_WAIT_S:
                said = f", {number} times" if number > 1 else ""
                wish = f"; it asks to be left alone for {error.wait_s:.0f} s" if error.wait_s > MAX_WAIT_S else ""
                raise FetchError(error.reason, f"{error.detail}{said}{wish}") from error
            pause(max(error.wait_s, choose_wait(number)))
    raise AssertionError("unreachable")


def choose_wait(failed: int) -> float:
    """Seconds to wait after so many failures: any length up to twice the longest of the last time."""
    return _chance.uniform(0.0, min(MAX_WAIT_S, _FIRST_WAIT_S * 2 ** (failed - 1)))


def pause(seconds: float) -> None:
    """Wait, unless nobody waits for this thread any more.

    Raises:
        AbandonedError: nobody does.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        raise_if_abandoned()
        time.sleep(min(left, _LOOK_S))
