"""Remote stores: the interface that every kind has, which kind an address means, and retries.

A new kind is one class in a file, and its line in `_open`, which loads nothing of any other.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Protocol, TypeVar

from index.network.public_addresses import PORTS
from index.threads import raise_if_abandoned

Result = TypeVar("Result")

TRIES = 4
_local = threading.local()
MAX_WAIT_S = 60.0
"""The longest that a server's wish to be left alone is granted; who wants more is left alone for good."""
_FIRST_WAIT_S, _LOOK_S = 0.5, 0.1
_chance = random.SystemRandom()  # of its own: the usual one has a seed that people set

NOT_FOUND, NO_RIGHTS, UNREACHABLE, REFUSED = "not-found", "permission-denied", "unreachable", "refused-address"
"""The reasons why something is not fetched; see `index.images.image_files.REASONS`."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.DOTALL)
_OF_STORES = ("AWS_", "GOOGLE_", "AZURE_", "FSSPEC_")
_SECOND = 10**9
_MOST_SECONDS = 9 * 10**9  # the year 2255: a catalogue has 64 bits, and a server may say any year


class FetchError(Exception):
    """Something that was not fetched.

    Attributes:
        reason: one of those above.
        detail: what was seen.
        is_transient: whether another try may help.
        wait_s: how long the server wants to be left alone before.
    """

    def __init__(self, reason: str, detail: str, *, is_transient: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.is_transient, self.wait_s = reason, detail, is_transient, wait_s


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What a store says of a file.

    Attributes:
        path: below the address that was opened.
        size_bytes: None where the store does not say.
        stamp: another number once the file was changed, as `make_stamp` has it; 0 where the store tells nothing.
    """

    path: str
    size_bytes: int | None
    stamp: int


class RemoteStore(Protocol):
    """The files below one address; any number of threads may ask at once. What fails is a `FetchError`."""

    def walk(self) -> Iterator[RemoteFile]:
        """All files, in the order of their paths."""

    def look(self, path: str) -> RemoteFile:
        """What is known of a file, without fetching it."""

    def open(
        self, path: str, *, offset: int = 0, size_bytes: int | None = None
    ) -> AbstractContextManager[Content]:
        """The bytes of a file from an offset on, all or so many; they come while they are taken."""


def make_stamp(tag: str | None, modified: datetime | None) -> int:
    """What stands in the place of a file's time in nanoseconds: the second of its change, and a trace of its ETag.

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
    """Whether the number in the place of a file's time tells when it was changed; not within the first second."""
    return not 0 <= stamp_ns < _SECOND


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
    """What an attempt gives, at the latest the fourth; in a hurry the first."""
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
    """Wait, unless nobody waits for this thread any more."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        raise_if_abandoned()
        time.sleep(min(left, _LOOK_S))


Content = tuple[RemoteFile, Iterator[bytes]]
"""A file with its bytes in parts; the file's size is that of the whole."""


def is_address(text: str) -> bool:
    """Whether a text is `scheme://place`, which no path of a file is meant by."""
    return _ADDRESS.fullmatch(text) is not None


def is_web(address: str) -> bool:
    """Whether it is one of http or https, where nothing is listed."""
    return address.partition("://")[0] in PORTS


def open_store(root: str) -> RemoteStore:
    """The store that an address lies in, opened there; "" is that of whole addresses of http and https."""
    said = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_OF_STORES)))
    return _open(root, said, is_hurried())


@lru_cache(maxsize=64)
def _open(root: str, said: tuple[tuple[str, str], ...], hurried: bool) -> RemoteStore:
    """One store for as long as the environment says the same of it: its connections are used again."""
    if not root or is_web(root):
        from index.network.web_store import WebStore

        return WebStore(root)
    from index.network.file_system_store import FileSystemStore
    from index.network.object_store import SCHEMES, BucketStore

    is_bucket = root.partition("://")[0] in SCHEMES
    return BucketStore(root, is_hurried=hurried) if is_bucket else FileSystemStore(root)
