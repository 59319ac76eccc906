"""The registry of source kinds, and the choice of one by a path, pattern or catalogue."""

import os

from index.errors import InputError
from index.sources.coco import CocoSource
from index.sources.local_source import (
    ArchiveSource,
    CellSource,
    FileSource,
    FolderSource,
    GlobSource,
    ListSource,
    TableSource,
)
from index.sources.remote import RemoteArchiveSource, RemoteFileSource, RemoteGlobSource, RemoteSource
from index.sources.source import ImageSource
from index.sources.url_list import UrlListSource
from index.text import printable_path

SOURCES: tuple[type[ImageSource], ...] = (
    FolderSource,
    CellSource,
    UrlListSource,
    RemoteGlobSource,
    RemoteArchiveSource,
    RemoteFileSource,
    RemoteSource,
    GlobSource,
    ArchiveSource,
    TableSource,
    CocoSource,
    ListSource,
    FileSource,
)
"""`find_source` tries them in this order."""


def find_source(text: str) -> ImageSource:
    """The source that a path, pattern or address names; an existing path is never a pattern."""
    shown = printable_path(text)
    if not text:
        raise InputError("the source is an empty text: give a folder, archive, list, table, pattern or address")
    for kind in SOURCES:
        if (source := kind.find(text)) is not None:
            return source.at(source.location)
    if os.path.exists(text):
        raise InputError(f"{shown}: expected an image, folder, archive, list or table, found a device")
    raise InputError(f"{shown}: no such file or folder; patterns have one of * ? [")


def make_source(kind: str, location: str) -> ImageSource:
    """The source that a catalogue recorded."""
    for source in SOURCES:
        if source.kind == kind:
            return source(location)
    raise InputError(f"{printable_path(location)}: a source of an unknown kind, {kind!r}; use a newer program")
