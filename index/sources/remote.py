"""Remote sources: all files below an address, a pattern, an archive, or one file."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from index.errors import ImageError, InputError
from index.images.image_files import IMAGE_SUFFIXES
from index.network.remote_store import (
    NO_RIGHTS,
    NOT_FOUND,
    REFUSED,
    FetchError,
    RemoteFile,
    is_address,
    is_web,
    open_store,
    retry,
)
from index.sources.archive_scan import ARCHIVE_SUFFIXES, COMPRESSED_SUFFIXES, is_archive, scan_shard
from index.sources.items import FoundItem, ItemFields, Place
from index.sources.local_source import Tail, has_wildcard
from index.sources.reading import plain_name, spool_shard
from index.sources.source import NOTHING_KNOWN, ImageSource, Known, Reach
from index.sources.table_rows import folder_label
from index.text import printable_path


class RemoteSource(ImageSource):
    """All images below an address such as `s3://bucket/photos`."""

    kind: ClassVar[str] = "remote"

    @cached_property
    def root(self) -> str:
        return self.location

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Any address that no other kind of source accepts."""
        if not is_address(text):
            return None
        if is_web(text):
            raise InputError(
                f"{printable_path(text)}: http and https list nothing; give the address of an archive (.tar, .tar.gz, "
                ".zip), of an image, or of a list of addresses (.parquet, .csv, .tsv, .jsonl, .txt)"
            )
        return cls(text.rstrip("/"))

    def is_there(self) -> bool:
        return True

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        empty = True
        for file in self._list():
            empty = False
            yield from _enter(self.root, file, known)
        if empty:
            raise self._unusable(f"no file {self._wanted}")

    _wanted: ClassVar[str] = "lies below it"

    def _list(self) -> Iterator[RemoteFile]:
        try:
            for file in open_store(self.root).walk():
                if file.path and not file.path.endswith("/"):  # a folder's own mark
                    yield file
        except FetchError as error:
            raise self._unusable(_explain(error)) from error

    def _unusable(self, problem: str) -> InputError:
        return InputError(f"{printable_path(self.location)}: {problem}")

    def locate(self, item: ItemFields) -> Place:
        address = f"{self.root}/{item.path}"
        place = Place(
            Path(address), printable_path(address), size_bytes=item.size_bytes, store=self.root, key=item.path
        )
        if item.archive is None:
            return place
        return replace(place, key=item.archive, offset=item.starts_at, mtime_ns=item.mtime_ns)


class RemoteGlobSource(RemoteSource):
    """A pattern such as `s3://bucket/shards/*.tar`; * stays within a folder, ** does not."""

    kind: ClassVar[str] = "remote-glob"
    reach: ClassVar[Reach] = Reach.PART
    _wanted: ClassVar[str] = "matches the pattern"

    @cached_property
    def root(self) -> str:
        return self._split()[0]

    @classmethod
    def find(cls, text: str) -> Self | None:
        return cls(text.rstrip("/")) if is_address(text) and not is_web(text) and has_wildcard(text) else None

    def _list(self) -> Iterator[RemoteFile]:
        tail = Tail(self._split()[1])
        return (file for file in super()._list() if tail.holds(file.path))

    def _split(self) -> tuple[str, tuple[str, ...]]:
        scheme, _, rest = self.location.partition("://")
        parts = rest.split("/")
        first = next(number for number, part in enumerate(parts) if has_wildcard(part))
        if first == 0:
            raise self._unusable("a pattern begins behind the bucket or host")
        return f"{scheme}://{'/'.join(parts[:first])}", tuple(parts[first:])


class RemoteFileSource(RemoteSource):
    """One file at an address; as a source of a gallery, one image."""

    kind: ClassVar[str] = "remote-file"
    is_one_item: ClassVar[bool] = True
    _suffixes: ClassVar[tuple[str, ...]] = IMAGE_SUFFIXES

    @cached_property
    def root(self) -> str:
        whole = plain_name(self.location) if is_web(self.location) else self.location
        return whole.rpartition("/")[0]

    @classmethod
    def find(cls, text: str) -> Self | None:
        name = plain_name(text) if is_web(text) else text
        is_meant = is_address(text) and "/" in name.partition("://")[2] and name.lower().endswith(cls._suffixes)
        return cls(text) if is_meant else None

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """The image, or the archive's members; nothing where an image is gone."""
        try:
            file = self._look()
        except FetchError as error:
            if not (self.is_one_item and error.reason == NOT_FOUND):
                raise self._unusable(_explain(error)) from error
            return
        yield from _enter(self.root, file, known)

    def fetch(self) -> Path:
        """Download the file; its local path."""
        shown = printable_path(self.location)
        try:
            file = self._look()
        except FetchError as error:
            raise ImageError(path=shown, reason=error.reason, detail=_explain(error)) from error
        return spool_shard(self.root, file, name=shown).file

    def _look(self) -> RemoteFile:
        store, name = open_store(self.root), self.location[len(self.root) + 1 :]
        file = retry(lambda: store.look(name))
        # Without an ETag or time a change cannot be detected, so the file counts as new every time.
        return file if file.stamp else replace(file, stamp=time.time_ns())


class RemoteArchiveSource(RemoteFileSource):
    """The members of one tar or zip file at an address."""

    kind: ClassVar[str] = "remote-archive"
    is_one_item: ClassVar[bool] = False
    _suffixes: ClassVar[tuple[str, ...]] = ARCHIVE_SUFFIXES + COMPRESSED_SUFFIXES


def _enter(root: str, file: RemoteFile, known: Known) -> Iterator[FoundItem]:
    """The items of one file: itself, or an archive's members."""
    found = FoundItem(file.path, file.size_bytes or 0, file.stamp, label=folder_label(file.path))
    if not is_archive(plain_name(file.path)):
        yield found
        return
    shown = printable_path(f"{root}/{file.path}")
    yield from known.enter(found, lambda: scan_shard(found, lambda: spool_shard(root, file, name=shown)))


def _explain(error: FetchError) -> str:
    """A fetch error with advice."""
    advice = {
        NOT_FOUND: "nothing has this name; check the bucket and the path",
        NO_RIGHTS: "no right to read it with the given keys, if any",
        REFUSED: "",
    }.get(error.reason, "check the address, the network, and for buckets AWS_ENDPOINT_URL and AWS_REGION")
    return f"{error.detail}; {advice}" if advice else error.detail
