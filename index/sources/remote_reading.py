"""The bytes of remote items: whole files, and members of shards by their place in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from index.errors import ImageError
from index.images.decode import FIRST_BYTES
from index.images.image_files import CheckContent, check_content, check_size
from index.limits import MAX_FETCHED_BYTES, MAX_FILE_BYTES
from index.network.fetching import fetch, stream
from index.network.remote_store import FetchError, RemoteFile
from index.network.retrying import is_hurried, retry
from index.network.stores import open_store
from index.sources.items import Place
from index.sources.reading import read_spooled
from index.sources.spool import Spooled, find_spooled, spool


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
