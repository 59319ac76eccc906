"""Bytes from a store: whole files and parts of them, bounded in size and time, and tried again where that may help."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from index.network.remote_store import UNREACHABLE, FetchError, RemoteFile, RemoteStore
from index.network.retrying import TRIES, choose_wait, is_hurried, pause, retry

TOO_LARGE = "file-too-large"
_MOST_S, _HURRIED_S = 120.0, 20.0  # that an image may take to come


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes, and what the store said of the whole file that they are of."""

    data: bytes
    file: RemoteFile


def fetch(
    store: RemoteStore,
    path: str,
    *,
    max_bytes: int,
    check: Callable[[bytes], None],
    first_bytes: int,
    offset: int = 0,
    size_bytes: int | None = None,
) -> Fetched:
    """The bytes of a file, or so many of them from an offset on.

    Args:
        store: where it is.
        path: of the file.
        max_bytes: more are not taken.
        check: sees the first bytes, as soon as so many are there; what it raises is raised here.
        first_bytes: that it wants to see.

    Raises:
        FetchError: it cannot be had, after several tries where these may help, or has too many bytes.
    """

    def attempt() -> Fetched:
        most_s = _HURRIED_S if is_hurried() else _MOST_S
        until = time.monotonic() + most_s
        with store.open(path, offset=offset, size_bytes=size_bytes) as (found, parts):
            wanted = found.size_bytes if size_bytes is None else size_bytes
            data, is_checked = bytearray(), False
            if wanted is not None and wanted > max_bytes:
                raise _too_large(wanted, max_bytes)
            for part in parts:
                data += part
                if not is_checked and len(data) >= first_bytes:
                    check(bytes(data[:first_bytes]))
                    is_checked = True
                if len(data) > max_bytes:
                    raise _too_large(len(data), max_bytes)
                if time.monotonic() > until:
                    raise FetchError(UNREACHABLE, f"it did not come within {most_s:g} s")
        if wanted is not None and len(data) != wanted:
            seen = f"it broke off after {len(data)} of {wanted} bytes"
            raise FetchError(UNREACHABLE, seen, is_transient=True)
        if not is_checked:
            check(bytes(data))
        return Fetched(bytes(data), found if size_bytes is not None else replace(found, size_bytes=len(data)))

    return retry(attempt)


def stream(store: RemoteStore, path: str, *, found: RemoteFile) -> Iterator[bytes]:
    """The whole of a file that was looked at, in parts; what breaks off is gone on with where it broke off.

    Raises:
        FetchError: it cannot be had, after several tries without one more byte, or was changed meanwhile.
    """
    at = failed = 0
    while True:
        try:
            with store.open(path, offset=at) as (now, parts):
                if now.stamp not in (0, found.stamp):
                    raise FetchError(UNREACHABLE, "it was changed while it was fetched")
                for part in parts:
                    at, failed = at + len(part), 0
                    yield part
            if found.size_bytes is None or at == found.size_bytes:
                return
            seen = f"it broke off after {at} of {found.size_bytes} bytes"
            raise FetchError(UNREACHABLE, seen, is_transient=at < found.size_bytes)
        except FetchError as error:
            failed += 1
            if not error.is_transient or failed == TRIES:
                raise
            pause(max(error.wait_s, choose_wait(failed)))


def _too_large(size_bytes: int, max_bytes: int) -> FetchError:
    return FetchError(TOO_LARGE, f"{size_bytes} bytes, at most {max_bytes} are fetched")
