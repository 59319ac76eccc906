"""Remote sources: all files below an address or those of a pattern, and one file."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from index.errors import ImageError, InputError
from index.images.image_files import IMAGE_SUFFIXES
from index.items import FoundItem, ItemFields, Place
from index.network.remote_store import FetchError, is_address, is_web, open_store, retry
from index.sources.archive_scan import ARCHIVE_SUFFIXES, COMPRESSED_SUFFIXES, is_archive, scan_shard
from index.sources.local_source import has_wildcard, matches_pattern
from index.sources.reading import plain_name, spool_shard
from index.sources.source import ImageSource, Reach
from index.sources.table_rows import folder_label
from index.text import printable_path


class RemoteSource(ImageSource):
    """All images below an address such as `s3://bucket/photos`, or of a pattern, as `s3://bucket/shards/*.tar`."""

    kind: ClassVar[str] = "remote"

    @property
    def reach(self) -> Reach:
        return Reach.PART if has_wildcard(self.location) else Reach.WHOLE

    @cached_property
    def root(self) -> str:
        return self._split()[0]

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Any address that no other kind of source accepts."""
        if not is_address(text):
            return None
        if is_web(text):
            problem = (
                "http and https list nothing; give the address of an archive (.tar, .tar.gz, .zip), of an image, or of "
                "a list of addresses (.parquet, .csv, .tsv, .jsonl, .txt)"
            )
            raise InputError(problem, at=text)
        return cls(text.rstrip("/"))

    def is_there(self) -> bool:
        return True

    def find_files(self) -> Iterator[FoundItem]:
        root, pattern = self._split()
        empty = True
        try:
            for file in open_store(root).walk():
                is_folder = not file.path or file.path.endswith("/")  # a folder's own marker
                if not is_folder and (not pattern or matches_pattern(file.path, pattern)):
                    empty = False
                    yield _as_item(file)
        except FetchError as error:
            raise InputError(_explain(error), at=self.location) from error
        if empty:
            raise InputError(f"no file {'matches the pattern' if pattern else 'lies below it'}", at=self.location)

    def members(self, archive: FoundItem) -> Iterator[FoundItem]:
        shown = printable_path(f"{self.root}/{archive.path}")
        return scan_shard(archive, lambda: spool_shard(self.root, archive, name=shown))

    def _split(self) -> tuple[str, list[str]]:
        """The address without the parts of a pattern, and these."""
        scheme, _, rest = self.location.partition("://")
        parts = rest.split("/")
        first = next((number for number, part in enumerate(parts) if has_wildcard(part)), len(parts))
        if first == 0:
            raise InputError("a pattern begins behind the bucket or host", at=self.location)
        return f"{scheme}://{'/'.join(parts[:first])}", parts[first:]

    def locate(self, item: ItemFields) -> Place:
        address = f"{self.root}/{item.path}"
        place = Place(
            Path(address), printable_path(address), size_bytes=item.size_bytes, store=self.root, key=item.path
        )
        if item.archive is None:
            return place
        return replace(place, key=item.archive, offset=item.starts_at, mtime_ns=item.mtime_ns)


class RemoteFileSource(RemoteSource):
    """One file at an address: an image, or an archive of them."""

    kind: ClassVar[str] = "remote-file"
    reach = Reach.WHOLE

    @property
    def is_one_item(self) -> bool:
        return not is_archive(plain_name(self.location))

    @cached_property
    def root(self) -> str:
        whole = plain_name(self.location) if is_web(self.location) else self.location
        return whole.rpartition("/")[0]

    @classmethod
    def find(cls, text: str) -> Self | None:
        if not is_address(text) or (has_wildcard(text) and not is_web(text)):
            return None
        name = plain_name(text) if is_web(text) else text
        suffixes = (*IMAGE_SUFFIXES, *ARCHIVE_SUFFIXES, *COMPRESSED_SUFFIXES)
        return cls(text) if "/" in name.partition("://")[2] and name.lower().endswith(suffixes) else None

    def find_files(self) -> Iterator[FoundItem]:
        """The image or archive; nothing where an image is gone."""
        try:
            file = self._look()
        except FetchError as error:
            if not (self.is_one_item and error.reason == FetchError.NOT_FOUND):
                raise InputError(_explain(error), at=self.location) from error
            return
        yield _as_item(file)

    def fetch(self) -> Path:
        """Download the file; its local path."""
        shown = printable_path(self.location)
        try:
            file = self._look()
        except FetchError as error:
            raise ImageError(path=shown, reason=error.reason, detail=_explain(error)) from error
        return spool_shard(self.root, file, name=shown)[0]

    def _look(self) -> FoundItem:
        store, name = open_store(self.root), self.location[len(self.root) + 1 :]
        file = retry(lambda: store.look(name))
        # Without an ETag or time a change cannot be detected, so the file counts as new every time.
        return file if file.mtime_ns else replace(file, mtime_ns=time.time_ns())


def _as_item(file: FoundItem) -> FoundItem:
    return replace(file, label=folder_label(file.path), is_archive=is_archive(plain_name(file.path)))


def _explain(error: FetchError) -> str:
    """A fetch error with advice."""
    advice = {
        FetchError.NOT_FOUND: "nothing has this name; check the bucket and the path",
        FetchError.NO_RIGHTS: "no right to read it with the given keys, if any",
        FetchError.REFUSED: "",
    }.get(error.reason, "check the address, the network, and for buckets AWS_ENDPOINT_URL and AWS_REGION")
    return f"{error.detail}; {advice}" if advice else error.detail
