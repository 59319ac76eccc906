"""Reading the bytes of an item: a file, a member of an archive, or a remote file; prefetching of remote items."""

import hashlib
import os
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from index.errors import ImageError
from index.images.decode import FIRST_BYTES
from index.images.image_files import CheckContent, check_content, check_size, modified_ns, open_file, read_bytes
from index.items import FoundItem, Place
from index.limits import MAX_FETCHED_BYTES, MAX_FILE_BYTES
from index.network.remote_store import (
    NO_PARTS,
    TRIES,
    FetchError,
    choose_wait,
    in_a_hurry,
    is_hurried,
    open_store,
    pause,
    retry,
)
from index.sources.archive_members import is_zip_name, read_member
from index.sources.archive_scan import is_compressed
from index.sources.spool import Spooled, find_spooled, spool, spool_local
from index.threads import map_ahead

CHANGED = "changed"
"""Reason of an error: the bytes are not the indexed ones."""
FETCHED_AT_ONCE = 32
_LARGE_BYTES = 1 << 23  # larger items are not prefetched
_MOST_S, _HURRIED_S = 120.0, 20.0  # limits for fetching one image


def read_place(place: Place, *, check: CheckContent = check_content) -> bytes:
    """The bytes of one item, whose first ones the check may refuse; safe among threads."""
    if place.problem is not None:
        raise place.problem.apart()
    if place.data is not None:
        check(place.data[:FIRST_BYTES], name=place.name)
        return place.data
    if place.store is not None:
        return fetch_place(place, check=check).data or b""
    if place.offset is None or place.size_bytes is None:
        return read_bytes(place.file, check=check)
    check_size(place.size_bytes, name=place.name)
    with open_file(place.file) as file:
        if place.mtime_ns not in (None, modified_ns(os.fstat(file.fileno()))):
            raise _changed_archive(place)
        if not is_compressed(place.file.name):
            return _read_member(place.file, place, check=check)
    return _read_member(spool_local(place.file)[0], place, check=check)


def read_indexed(place: Place) -> bytes:
    """Read the indexed bytes, without long retries; an ImageError if they have changed."""
    with in_a_hurry():
        data = read_place(place)
    if place.sha256 is not None and hashlib.sha256(data).hexdigest() != place.sha256:
        detail = "the file changed since it was indexed; bring the gallery up to date: retrieval index update"
        raise ImageError(path=place.name, reason=CHANGED, detail=detail)
    return data


def _read_member(archive: Path, place: Place, *, check: CheckContent) -> bytes:
    member = FoundItem(place.name, place.size_bytes or 0, 0, starts_at=place.offset)
    with open_file(archive) as file:
        return read_member(file.fileno(), member, is_zip=is_zip_name(archive), check=check)


def _changed_archive(place: Place) -> ImageError:
    return ImageError(path=place.name, reason="unreadable", detail="the archive changed since it was scanned")


def fetch_place(place: Place, *, check: CheckContent = check_content) -> Place:
    """The place with the bytes of a remote file or of a member of a remote archive.

    A member is read from the spooled archive. Of a plain tar that is not spooled only this range is fetched, unless the
    server gives no ranges: the whole archive is then spooled.
    """
    if place.offset is None:
        found, data = _fetch(place, check, max_bytes=MAX_FILE_BYTES if place.size_bytes else MAX_FETCHED_BYTES)
        return replace(place, data=data, size_bytes=len(data), fetched=(len(data), found.mtime_ns))
    assert place.store is not None
    assert place.size_bytes is not None
    assert place.mtime_ns is not None
    check_size(place.size_bytes, name=place.name)
    shard, name = FoundItem(place.key, 0, place.mtime_ns), plain_name(place.key)
    spooled = find_spooled(_spool_key(place.store, shard), name=name)
    if spooled is None and name.lower().endswith(".tar"):
        part = place.offset, place.size_bytes
        try:
            found, data = _fetch(place, check, max_bytes=MAX_FILE_BYTES, offset=part[0], size_bytes=part[1])
        except ImageError as error:
            if error.detail != NO_PARTS:
                raise
        else:
            if found.mtime_ns not in (0, place.mtime_ns):
                raise _changed_archive(place)
            return replace(place, data=data)
    if spooled is None and is_hurried():
        detail = "its archive is not in the cache, and would have to be fetched whole"
        raise ImageError(path=place.name, reason="unreadable", detail=detail)
    archive, _ = spooled or spool_shard(place.store, shard, name=place.name)
    return replace(place, data=_read_member(archive, place, check=check))


def _fetch(
    place: Place, check: CheckContent, *, max_bytes: int, offset: int = 0, size_bytes: int | None = None
) -> tuple[FoundItem, bytes]:
    """A remote file and its bytes, or a range of them, with retries."""
    store = open_store(place.store or "")

    def attempt() -> tuple[FoundItem, bytes]:
        most_s = _HURRIED_S if is_hurried() else _MOST_S
        until = time.monotonic() + most_s
        with store.open(place.key, offset=offset, size_bytes=size_bytes) as (found, parts):
            wanted = found.size_bytes if size_bytes is None else size_bytes
            data, is_checked = bytearray(), False
            _check_fetched(wanted, max_bytes)
            for part in parts:
                data += part
                if not is_checked and len(data) >= FIRST_BYTES:
                    check(bytes(data[:FIRST_BYTES]), name=place.name)
                    is_checked = True
                _check_fetched(len(data), max_bytes)
                if time.monotonic() > until:
                    raise FetchError(FetchError.UNREACHABLE, f"it did not come within {most_s:g} s")
        if wanted and len(data) != wanted:
            seen = f"it broke off after {len(data)} of {wanted} bytes"
            raise FetchError(FetchError.UNREACHABLE, seen, is_transient=True)
        if not is_checked:
            check(bytes(data), name=place.name)
        return found, bytes(data)

    try:
        return retry(attempt)
    except FetchError as error:
        raise _as_image_error(error, name=place.name) from error


def _check_fetched(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise FetchError("file-too-large", f"{size_bytes} bytes, at most {max_bytes} are fetched")


def spool_shard(root: str, shard: FoundItem, *, name: str) -> Spooled:
    """Download a remote archive to the spool."""

    def fetch_parts() -> Iterator[bytes]:
        """The whole archive in parts; after an interruption, continued from the same offset."""
        store, found = open_store(root), shard
        if not shard.size_bytes:  # it was not listed just now
            found = retry(lambda: store.look(shard.path))
            if found.mtime_ns not in (0, shard.mtime_ns):
                raise FetchError("unreadable", "the archive changed since it was scanned")
        at = failed = 0
        while True:
            try:
                with store.open(shard.path, offset=at) as (now, parts):
                    if now.mtime_ns not in (0, found.mtime_ns):
                        raise FetchError(FetchError.UNREACHABLE, "it was changed while it was fetched")
                    for part in parts:
                        at, failed = at + len(part), 0
                        yield part
                if at == found.size_bytes or not found.size_bytes:
                    return
                seen = f"it broke off after {at} of {found.size_bytes} bytes"
                raise FetchError(FetchError.UNREACHABLE, seen, is_transient=at < found.size_bytes)
            except FetchError as error:
                failed += 1
                if not error.is_transient or failed == TRIES:
                    raise
                pause(max(error.wait_s, choose_wait(failed)))

    try:
        return spool(_spool_key(root, shard), name=plain_name(shard.path), fetch=fetch_parts)
    except FetchError as error:
        raise _as_image_error(error, name=name) from error


def plain_name(path: str) -> str:
    """A path or address without its query string."""
    return path.partition("?")[0]


def _as_image_error(error: FetchError, *, name: str) -> ImageError:
    return ImageError(path=name, reason=error.reason, detail=error.detail)


def _spool_key(root: str, shard: FoundItem) -> str:
    return f"{root}/{shard.path}\n{shard.mtime_ns}"


_Item = tuple[int, Place]


def fetch_ahead(items: Iterable[_Item], *, only_unknown: bool = False) -> Generator[_Item, None, None]:
    """Items (id, place) in order, remote ones with their bytes, prefetched in threads; others unchanged.

    With `only_unknown`, those with an expected SHA-256 are not fetched.
    """

    def is_missing(item: _Item) -> bool:
        place = item[1]
        return place.store is not None and place.data is None and not (only_unknown and place.sha256 is not None)

    for is_remote, some in groupby(items, is_missing):
        if is_remote:
            with closing(map_ahead(_fetch_item, some, workers=FETCHED_AT_ONCE, ahead=FETCHED_AT_ONCE)) as fetched:
                yield from fetched
        else:
            yield from some


def _fetch_item(item: _Item) -> _Item:
    key, place = item
    if (place.size_bytes or 0) > _LARGE_BYTES:
        return item
    try:
        return key, fetch_place(place)
    except ImageError as error:
        return key, replace(place, data=b"", problem=error.apart())
