"""Remote items fetched in threads before they are needed: a network answers late, but many at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from index.errors import ImageError
from index.images.decode import FIRST_BYTES
from index.images.image_files import CheckContent, check_content
from index.network.remote_store import RemoteFile
from index.sources.items import Place
from index.sources.remote_reading import RemoteReader
from index.threads import heed_abandonment

FETCHED_AT_ONCE = 32
_LARGE_BYTES = 1 << 23  # is left to whoever needs it, and has room for it

_Item = tuple[int, Place]


@dataclass(frozen=True, slots=True)
class HeldContent:
    """Stands in the place of a reader: the bytes, or why there are none, and what their store says of them."""

    data: bytes = b""
    file: RemoteFile | None = None
    problem: ImageError | None = None

    def __call__(self, place: Place, *, check: CheckContent = check_content) -> bytes:
        if self.problem is not None:
            raise self.problem.apart()
        check(self.data[:FIRST_BYTES], name=place.name)
        return self.data


def held(place: Place) -> HeldContent | None:
    """What was fetched of a place; None of one that is still to be read."""
    return place.reader if isinstance(place.reader, HeldContent) else None


def is_remote(place: Place) -> bool:
    """Whether reading a place asks a network."""
    return isinstance(place.reader, RemoteReader)


def fetch_ahead(items: Iterable[_Item]) -> Generator[_Item, None, None]:
    """Items given as (id, place) in their order, remote ones with their bytes; all others, and large ones, as they are.

    No thread is started before the first remote one comes. Closing the generator ends the work.
    """
    abandoned, waiting = threading.Event(), deque[_Item | Future[_Item]]()
    pool: ThreadPoolExecutor | None = None
    try:
        for item in items:
            if is_remote(item[1]) and (item[1].size_bytes or 0) <= _LARGE_BYTES:
                pool = pool or ThreadPoolExecutor(FETCHED_AT_ONCE, "fetch", heed_abandonment, (abandoned,))
                waiting.append(pool.submit(_fetch, item))
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


def _fetch(item: _Item) -> _Item:
    key, place = item
    assert isinstance(place.reader, RemoteReader)
    try:
        fetched = place.reader.fetch(place)
    except ImageError as error:
        return key, replace(place, reader=HeldContent(problem=error.apart()))
    return key, replace(place, size_bytes=len(fetched.data), reader=HeldContent(fetched.data, fetched.file))
