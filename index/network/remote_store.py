"""Remote stores: their interface, the choice of one by address, and retries."""

import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Protocol, TypeVar

from index.errors import InputError
from index.items import FoundItem
from index.network.public_addresses import PORTS
from index.threads import raise_if_abandoned

Result = TypeVar("Result")

TRIES = 4
_local = threading.local()
MAX_WAIT_S = 60.0
"""The longest Retry-After that is waited for; a server that wants more is not asked again."""
_FIRST_WAIT_S, _LOOK_S = 0.5, 0.1
NO_PARTS = "its server gives no parts of a file (no range requests)"
_chance = random.SystemRandom()  # independent of the seed of `random`

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.DOTALL)
_OF_STORES = ("AWS_", "GOOGLE_", "AZURE_")
_SECOND = 10**9
_MOST_SECONDS = 9 * 10**9  # the year 2255, which 64 bits of nanoseconds hold


class FetchError(Exception):
    """A failed fetch, with one of the reasons above.

    `is_transient` tells whether a retry may help, after the `wait_s` seconds that the server asks for.
    """

    # Reasons, see `index.images.image_files.REASONS`.
    NOT_FOUND, NO_RIGHTS, UNREACHABLE, REFUSED = "not-found", "permission-denied", "unreachable", "refused-address"

    def __init__(self, reason: str, detail: str, *, is_transient: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.is_transient, self.wait_s = reason, detail, is_transient, wait_s


class RemoteStore(Protocol):
    """The files below one address; safe among threads. Failures are `FetchError`s.

    A file has its path below the address, its size and as time the number of `make_stamp`; 0 where either is unknown.
    """

    def walk(self) -> Iterator[FoundItem]:
        """All files, in the order of their paths."""

    def look(self, path: str) -> FoundItem:
        """Size and stamp of a file, without its content."""

    def open(self, path: str, *, offset: int = 0, size_bytes: int | None = None) -> "AbstractContextManager[Content]":
        """Stream the bytes of a file from an offset on, all or so many."""


def make_stamp(tag: str | None, modified: datetime | None) -> int:
    """A number for the modification time in nanoseconds: the second of the change, plus a hash of the ETag.

    0 where neither is known. Without a time the number lies within the first second of 1970.

    >>> from datetime import UTC
    >>> make_stamp(None, datetime(2020, 1, 1, tzinfo=UTC)), make_stamp(None, None)
    (1577836800000000000, 0)
    """
    seconds = 0 if modified is None else min(max(0, int(modified.timestamp())), _MOST_SECONDS)
    if tag is None:
        return seconds * _SECOND
    trace = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big")
    return seconds * _SECOND + 1 + trace % (_SECOND - 1)


def has_time(stamp_ns: int) -> bool:
    """Whether a stamp includes a time, and not the ETag alone."""
    return not 0 <= stamp_ns < _SECOND


@contextmanager
def in_a_hurry() -> Iterator[None]:
    """Without retries and long waits in this thread, because a user waits for the result."""
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
    """The result of an attempt, tried up to four times; once in a hurry."""
    tries = 1 if is_hurried() else TRIES
    for number in range(1, tries + 1):
        try:
            return attempt()
        except FetchError as error:
            if not error.is_transient:
                raise
            if number == tries or error.wait_s > MAX_WAIT_S:
                said = f", {number} times" if number > 1 else ""
                wish = f"; it asks for a wait of {error.wait_s:.0f} s" if error.wait_s > MAX_WAIT_S else ""
                raise FetchError(error.reason, f"{error.detail}{said}{wish}") from error
            pause(max(error.wait_s, choose_wait(number)))
    raise AssertionError("unreachable")


def choose_wait(failed: int) -> float:
    """Exponential back-off with full jitter: seconds to wait after so many failures."""
    return _chance.uniform(0.0, min(MAX_WAIT_S, _FIRST_WAIT_S * 2 ** (failed - 1)))


def pause(seconds: float) -> None:
    """Sleep, or raise `AbandonedError` once the caller has given this thread up."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        raise_if_abandoned()
        time.sleep(min(left, _LOOK_S))


Content = tuple[FoundItem, Iterator[bytes]]
"""A file, with the size of the whole, and its bytes in parts."""


def is_address(text: str) -> bool:
    """Whether a text is `scheme://place`, and not a local path."""
    return _ADDRESS.fullmatch(text) is not None


def is_web(address: str) -> bool:
    """Whether it is http or https, which cannot list files."""
    return address.partition("://")[0] in PORTS


def open_store(root: str) -> RemoteStore:
    """The store of an address; "" is that of whole http and https addresses."""
    said = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_OF_STORES)))
    return _open(root, said, is_hurried())


@lru_cache(maxsize=64)
def _open(root: str, said: tuple[tuple[str, str], ...], hurried: bool) -> RemoteStore:
    """One store for each state of its environment variables, so that connections are reused."""
    if not root or is_web(root):
        from index.network.web_store import WebStore

        return WebStore(root)
    from index.network.object_store import SCHEMES, BucketStore

    if root.partition("://")[0] not in SCHEMES:
        problem = (
            "unknown kind of address; expected http://, https://, s3://, gs:// or az:// (mount other file systems and "
            "give the folder)"
        )
        raise InputError(problem, at=root)
    return BucketStore(root, is_hurried=hurried)
