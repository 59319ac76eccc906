"""Reading the bytes of an item: a file, a member of an archive, or a remote file; prefetching of remote items."""

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from index.errors import ImageError
from index.images.decode import FIRST_BYTES
from index.images.image_files import CheckContent, check_content, check_size, modified_ns, open_file, read_bytes
from index.limits import MAX_FETCHED_BYTES, MAX_FILE_BYTES
from index.network.remote_store import (
    TRIES,
    UNREACHABLE,
    FetchError,
    RemoteFile,
    choose_wait,
    in_a_hurry,
    is_hurried,
    open_store,
    pause,
    retry,
)
from index.sources.archive_members import Member, is_zip_name, read_member
from index.sources.archive_scan import is_compressed
from index.sources.items import Fetched, Place
from index.sources.spool import Spooled, find_spooled, spool, spool_local
from index.threads import heed_abandonment

CHANGED = "changed"
"""Reason of an error: the bytes are not the indexed ones."""
FETCHED_AT_ONCE = 32
_LARGE_BYTES = 1 << 23  # larger items are not prefetched
_MOST_S, _HURRIED_S = 120.0, 20.0  # limits for fetching one image


def read_place(place: Place, *, check: CheckContent = check_content) -> bytes:
    """The bytes of one item; safe among threads.

    Raises:
        ImageError: they cannot be read, the check refuses the first ones, or the archive changed since the scan.
    """
    if place.fetched is not None:
        if place.fetched.problem is not None:
            raise place.fetched.problem.apart()
        check(place.fetched.data[:FIRST_BYTES], name=place.name)
        return place.fetched.data
    if place.store is not None:
        return fetch_place(place, check=check).data
    if place.offset is None or place.size_bytes is None:
        return read_bytes(place.file, check=check)
    check_size(place.size_bytes, name=place.name)
    with open_file(place.file) as file:
        if place.mtime_ns not in (None, modified_ns(os.fstat(file.fileno()))):
            raise _changed_archive(place)
        if not is_compressed(place.file.name):
            return _read_spooled(Spooled(place.file), place, check=check)
    return _read_spooled(spool_local(place.file), place, check=check)


def read_indexed(place: Place) -> bytes:
    """As `read_place` without long retries, for bytes that must still be the indexed ones."""
    with in_a_hurry():
        data = read_place(place)
    if place.sha256 is not None and hashlib.sha256(data).hexdigest() != place.sha256:
        detail = "the file changed since it was indexed; bring the gallery up to date: retrieval index update"
        raise ImageError(path=place.name, reason=CHANGED, detail=detail)
    return data


def _read_spooled(spooled: Spooled, place: Place, *, check: CheckContent) -> bytes:
    assert place.offset is not None
    assert place.size_bytes is not None
    with open_file(spooled.file) as file:
        member = Member(place.name, place.offset, place.size_bytes)
        return read_member(file.fileno(), member, is_zip=is_zip_name(spooled.file), check=check)


def _changed_archive(place: Place) -> ImageError:
    return ImageError(path=place.name, reason="unreadable", detail="the archive changed since it was scanned")


def fetch_place(place: Place, *, check: CheckContent = check_content) -> Fetched:
    """The bytes of a remote file or of a member of a remote archive.

    A member is read from the spooled archive; of a plain tar that is not spooled only this range is fetched.
    """
    if place.offset is None:
        return _fetch(place, check, max_bytes=MAX_FILE_BYTES if place.size_bytes else MAX_FETCHED_BYTES)
    assert place.store is not None
    assert place.size_bytes is not None
    assert place.mtime_ns is not None
    check_size(place.size_bytes, name=place.name)
    shard, name = RemoteFile(place.key, None, place.mtime_ns), plain_name(place.key)
    spooled = find_spooled(_spool_key(place.store, shard), name=name)
    if spooled is None and name.lower().endswith(".tar"):
        got = _fetch(place, check, max_bytes=MAX_FILE_BYTES, offset=place.offset, size_bytes=place.size_bytes)
        if got.file is not None and got.file.stamp not in (0, place.mtime_ns):
            raise _changed_archive(place)
        return Fetched(got.data)
    if spooled is None and is_hurried():
        detail = "its compressed archive is not in the cache, and would have to be fetched whole"
        raise ImageError(path=place.name, reason="unreadable", detail=detail)
    spooled = spooled or spool_shard(place.store, shard, name=place.name)
    return Fetched(_read_spooled(spooled, place, check=check))


def _fetch(
    place: Place, check: CheckContent, *, max_bytes: int, offset: int = 0, size_bytes: int | None = None
) -> Fetched:
    """The bytes of a remote file, or a range of them, with retries."""
    store = open_store(place.store or "")

    def attempt() -> Fetched:
        most_s = _HURRIED_S if is_hurried() else _MOST_S
        until = time.monotonic() + most_s
        with store.open(place.key, offset=offset, size_bytes=size_bytes) as (found, parts):
            wanted = found.size_bytes if size_bytes is None else size_bytes
            data, is_checked = bytearray(), False
            _check_fetched(wanted or 0, max_bytes)
            for part in parts:
                data += part
                if not is_checked and len(data) >= FIRST_BYTES:
                    check(bytes(data[:FIRST_BYTES]), name=place.name)
                    is_checked = True
                _check_fetched(len(data), max_bytes)
                if time.monotonic() > until:
                    raise FetchError(UNREACHABLE, f"it did not come within {most_s:g} s")
        if wanted is not None and len(data) != wanted:
            seen = f"it broke off after {len(data)} of {wanted} bytes"
            raise FetchError(UNREACHABLE, seen, is_transient=True)
        if not is_checked:
            check(bytes(data), name=place.name)
        return Fetched(bytes(data), found if size_bytes is not None else replace(found, size_bytes=len(data)))

    try:
        return retry(attempt)
    except FetchError as error:
        raise _as_image_error(error, name=place.name) from error


def _check_fetched(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise FetchError("file-too-large", f"{size_bytes} bytes, at most {max_bytes} are fetched")


def spool_shard(root: str, shard: RemoteFile, *, name: str) -> Spooled:
    """Download a remote archive to the spool."""

    def fetch_parts() -> Iterator[bytes]:
        """The whole archive in parts; after an interruption, continued from the same offset."""
        store, found = open_store(root), shard
        if shard.size_bytes is None:  # it was not listed just now
            found = retry(lambda: store.look(shard.path))
            if found.stamp not in (0, shard.stamp):
                raise FetchError("unreadable", "the archive changed since it was scanned")
        at = failed = 0
        while True:
            try:
                with store.open(shard.path, offset=at) as (now, parts):
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

    try:
        return spool(_spool_key(root, shard), name=plain_name(shard.path), fetch=fetch_parts)
    except FetchError as error:
        raise _as_image_error(error, name=name) from error


def plain_name(path: str) -> str:
    """A path or address without its query string."""
    return path.partition("?")[0]


def _as_image_error(error: FetchError, *, name: str) -> ImageError:
    return ImageError(path=name, reason=error.reason, detail=error.detail)


def _spool_key(root: str, shard: RemoteFile) -> str:
    return f"{root}/{shard.path}\n{shard.stamp}"


_Item = tuple[int, Place]


def fetch_ahead(items: Iterable[_Item]) -> Generator[_Item, None, None]:
    """Prefetch remote items in threads: (id, place) in order, remote places with their bytes.

    Local and large items pass unchanged. The first remote item starts the threads; closing the generator ends them.
    """
    abandoned, waiting = threading.Event(), deque[_Item | Future[_Item]]()
    pool: ThreadPoolExecutor | None = None
    try:
        for item in items:
            place = item[1]
            if place.store is not None and place.fetched is None and (place.size_bytes or 0) <= _LARGE_BYTES:
                pool = pool or ThreadPoolExecutor(FETCHED_AT_ONCE, "fetch", heed_abandonment, (abandoned,))
                waiting.append(pool.submit(_fetch_item, item))
            else:
                waiting.append(item)
            while waiting and (len(waiting) > FETCHED_AT_ONCE or not isinstance(waiting[0], Future)):
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:
        abandoned.set()
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _result(entry: _Item | Future[_Item]) -> _Item:
    return entry.result() if isinstance(entry, Future) else entry


def _fetch_item(item: _Item) -> _Item:
    key, place = item
    try:
        fetched = fetch_place(place)
    except ImageError as error:
        return key, replace(place, fetched=Fetched(problem=error.apart()))
    return key, replace(place, size_bytes=len(fetched.data), fetched=fetched)
