"""One file as a source: an image, or a tar or zip, perhaps compressed, whose members `archive_scan` finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar

from index.errors import InputError
from index.sources.archive_scan import ARCHIVE_SUFFIXES, COMPRESSED_SUFFIXES
from index.sources.items import FoundItem
from index.sources.known import NOTHING_KNOWN, Known
from index.sources.local_files import scan_path
from index.sources.local_source import LocalSource
from index.text import printable_path


class FileSource(LocalSource):
    """Any regular file, which is the one item."""

    kind: ClassVar[str] = "file"
    is_one_item: ClassVar[bool] = True

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """The file; nothing where it is gone, as of a folder whose only file is gone."""
        if os.path.lexists(self.location):
            yield from scan_path(self.location, root=self.root, known=known)


class ArchiveSource(LocalSource):
    """The members of one tar or zip file, under the file's own name."""

    kind: ClassVar[str] = "archive"
    suffixes: ClassVar[tuple[str, ...]] = ARCHIVE_SUFFIXES + COMPRESSED_SUFFIXES

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In the archive's order."""
        if not os.path.lexists(self.location):
            raise InputError(f"{printable_path(self.location)}: no such file")
        return scan_path(self.location, root=self.root, known=known)
