"""The bytes of remote items: whole files, and members of shards by their place in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from index.errors import ImageError
from index.images.decode import FIRST_BYTES
from index.images.image_files import CheckContent, check_content, check_size
from index.limits import MAX_FETCHED_BYTES, MAX_FILE_BYTES
from index.network.remote_store import (
    TRIES,
    UNREACHABLE,
    FetchError,
    RemoteFile,
    RemoteStore,
    choose_wait,
    is_hurried,
    pause,
    retry,
)
from index.network.stores import open_store
from index.sources.items import Place
from index.sources.reading import read_spooled
from index.sources.spool import Spooled, find_spooled, spool

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


@dataclass(frozen=True, slots=True)
class FetchedItem:
    """The bytes of an item, and what its store says of it; None of what is a part of a shard."""

    data: bytes
    file: RemoteFile | None


@dataclass(frozen=True, slots=True)
class RemoteReader:
    """Reads places below an address; see `Place.reader`."""

    root: str

    def __call__(self, place: Place, *, check: CheckContent = check_content) -> bytes:
        return self.fetch(place, check=check).data

    def fetch(self, place: Place, *, check: CheckContent = check_content) -> FetchedItem:
        """The bytes at a place."""
        if place.offset is not None:
            return FetchedItem(self._read_member(place, check), None)
        most = MAX_FETCHED_BYTES if not place.size_bytes else MAX_FILE_BYTES
        return self._fetch(place, check, max_bytes=most)

    def _fetch(
        self,
        place: Place,
        check: CheckContent,
        *,
        max_bytes: int,
        offset: int = 0,
        size_bytes: int | None = None,
    ) -> FetchedItem:
        try:
            fetched = fetch(
                open_store(self.root),
                place.key,
                max_bytes=max_bytes,
                check=partial(check, name=place.name),
                first_bytes=FIRST_BYTES,
                offset=offset,
                size_bytes=size_bytes,
            )
        except FetchError as error:
            raise as_image_error(error, name=place.name) from error
        return FetchedItem(fetched.data, fetched.file)

    def _read_member(self, place: Place, check: CheckContent) -> bytes:
        """From the spooled shard where it is there; else, of what is not packed, that part alone."""
        assert place.offset is not None
        assert place.size_bytes is not None
        assert place.mtime_ns is not None
        check_size(place.size_bytes, name=place.name)
        shard = RemoteFile(place.key, None, place.mtime_ns)
        spooled = find_spooled(_key(self.root, shard), name=plain_name(place.key))
        if spooled is not None or not plain_name(place.key).lower().endswith(".tar"):
            if spooled is None and is_hurried():
                detail = "it lies in a packed shard that is not kept here, and would have to be fetched whole"
                raise ImageError(path=place.name, reason="unreadable", detail=detail)
            return read_spooled(spooled or spool_shard(self.root, shard, name=place.name), place, check=check)
        got = self._fetch(place, check, max_bytes=MAX_FILE_BYTES, offset=place.offset, size_bytes=place.size_bytes)
        if got.file is not None and got.file.stamp not in (0, place.mtime_ns):
            detail = "the archive changed since it was scanned"
            raise ImageError(path=place.name, reason="unreadable", detail=detail)
        return got.data


def spool_shard(root: str, shard: RemoteFile, *, name: str) -> Spooled:
    """A remote archive where it can be read."""
    store = open_store(root)

    def fetch_parts() -> Iterator[bytes]:
        found = shard
        if shard.size_bytes is None:  # it was not listed just now
            found = retry(lambda: store.look(shard.path))
            if found.stamp not in (0, shard.stamp):
                raise FetchError("unreadable", "the archive changed since it was scanned")
        return stream(store, shard.path, found=found)

    try:
        return spool(_key(root, shard), name=plain_name(shard.path), fetch=fetch_parts)
    except FetchError as error:
        raise as_image_error(error, name=name) from error


def plain_name(path: str) -> str:
    """A file's path or address without the part that queries something of it."""
    return path.partition("?")[0]


def as_image_error(error: FetchError, *, name: str) -> ImageError:
    """What is recorded of an item that was not fetched."""
    return ImageError(path=name, reason=error.reason, detail=error.detail)


def _key(root: str, shard: RemoteFile) -> str:
    return f"{root}/{shard.path}\n{shard.stamp}"
