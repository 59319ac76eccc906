"""Every kind of source, and which one a path, pattern or catalogue means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar

from index.errors import InputError
from index.sources.items import FoundItem
from index.sources.local_source import (
    ArchiveSource,
    FileSource,
    FolderSource,
    GlobSource,
    ListSource,
    LocalSource,
    TableSource,
)
from index.sources.remote import RemoteArchiveSource, RemoteFileSource, RemoteGlobSource, RemoteSource
from index.sources.source import NOTHING_KNOWN, ImageSource, Known
from index.sources.url_list import UrlListSource
from index.text import printable_path

SOURCES: tuple[type[ImageSource], ...] = (
    FolderSource,
    UrlListSource,
    RemoteGlobSource,
    RemoteArchiveSource,
    RemoteFileSource,
    RemoteSource,
    GlobSource,
    ArchiveSource,
    TableSource,
    ListSource,
    FileSource,
)
"""In the order in which they are asked whether a text is theirs."""


class UnknownSource(LocalSource):
    """A source of a kind that a later program recorded: its images are found, but it is not scanned."""

    kind: ClassVar[str] = "unknown"

    @classmethod
    def find(cls, text: str) -> None:
        """No text means it."""

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """Refused: nothing of it may be taken for gone."""
        shown = printable_path(self.location)
        raise InputError(f"{shown}: a source of a kind that this program does not know; use a newer one")


def find_source(text: str) -> ImageSource:
    """What a path or pattern names; a path that exists is never read as a pattern."""
    shown = printable_path(text)
    if not text:
        raise InputError("the source is an empty text: give a folder, archive, list, table, pattern or address")
    for kind in SOURCES:
        if (source := kind.find(text)) is not None:
            return source.at(source.location)
    if os.path.exists(text):
        raise InputError(f"{shown}: a socket, pipe or device; give a folder, archive, list, table or pattern")
    raise InputError(f"{shown}: no such file or folder; patterns have one of * ? [")


def make_source(kind: str, location: str) -> ImageSource:
    """A source as a catalogue recorded it."""
    known: dict[str, type[ImageSource]] = {source.kind: source for source in SOURCES}
    return known.get(kind, UnknownSource)(location)
