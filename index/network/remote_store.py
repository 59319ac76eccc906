"""`RemoteStore`: what is asked of a place on a network. A new kind is one class in a file, and its line in `stores`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

NOT_FOUND, NO_RIGHTS, UNREACHABLE, REFUSED = "not-found", "permission-denied", "unreachable", "refused-address"
"""The reasons why something is not fetched; see `index.images.image_files.REASONS`."""
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


Content = tuple[RemoteFile, Iterator[bytes]]
"""A file with its bytes in parts; the file's size is that of the whole."""


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
