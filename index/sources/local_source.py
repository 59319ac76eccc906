"""Local sources: folders, files, lists, tables and glob patterns."""

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from index.errors import InputError, reading
from index.items import FoundItem, ItemFields, Place
from index.paths import below, folders_above
from index.sources.archive_scan import is_archive, scan_archive
from index.sources.folder_metadata import FolderMetadata, describe_item
from index.sources.folder_walk import check_folder, find_file, walk_folder
from index.sources.image_cells import has_image_cells, scan_cells
from index.sources.source import ImageSource, Reach
from index.sources.table_rows import (
    USUAL,
    find_table,
    first_rows,
    folder_label,
    make_address,
    read_table_rows,
    split_address,
)
from index.text import printable_path

_WILDCARD = re.compile(r"[*?[]")
_MAX_LINE_CHARACTERS = 1 << 16  # far more than a path may have


def absolute_below(root: str, path: str) -> str:
    """A path of a list or table as an absolute normal path."""
    full = os.path.normpath(os.path.join(root, path))
    return full[1:] if full.startswith("//") else full


def label_below(key: str) -> str | None:
    """The first folder below the root as label; None for a path outside the root."""
    return None if key.startswith("/") else folder_label(key)


def find_below(path: str, *, root: str, wanted: Callable[[str], bool] | None = None) -> Iterator[FoundItem]:
    """The files at or below an absolute normal path; `wanted` selects files of a folder by their path below it."""
    name = below(root, path)
    if not os.path.isdir(path):
        yield _as_item(find_file(path, relative=name), path)
    elif not os.access(path, os.R_OK | os.X_OK):
        found = FoundItem(name, 0, 0, label=label_below(name))
        yield found.with_problem("permission-denied", "the folder cannot be listed")
    else:
        for found in walk_folder(Path(path)):
            if wanted is None or wanted(found.path):
                full = os.path.join(path, found.path)
                yield _as_item(found.at(below(root, full)), full)


def _as_item(found: FoundItem, path: str) -> FoundItem:
    """A file as an image with the label of its folder, or as an archive."""
    if found.problem is None and (is_archive(path) or has_image_cells(path)):
        return replace(found, is_archive=True)
    return replace(found, label=label_below(found.path))


class LocalSource(ImageSource):
    """A source that is one file with one of the `suffixes`, unless a subclass says otherwise."""

    suffixes: ClassVar[tuple[str, ...]] = ("",)

    @classmethod
    def find(cls, text: str) -> Self | None:
        is_meant = os.path.isfile(text) and text.lower().endswith(cls.suffixes)
        return cls(os.path.abspath(text)) if is_meant else None

    @property
    def root(self) -> str:
        return os.path.dirname(self.location)

    def is_there(self) -> bool:
        return os.path.exists(self.location)

    def members(self, archive: FoundItem) -> Iterator[FoundItem]:
        path = Path(self.root, archive.path)
        return scan_archive(path, archive=archive.path) if is_archive(path.name) else scan_cells(path, archive)

    def locate(self, item: ItemFields) -> Place:
        name = printable_path(os.path.join(self.root, item.path))
        if item.archive is None:
            return Place(Path(self.root, item.path), name)
        return Place(Path(self.root, item.archive), name, item.starts_at, item.size_bytes, item.mtime_ns)


class FolderSource(LocalSource):
    """All images below a folder."""

    kind: ClassVar[str] = "folder"

    @property
    def root(self) -> str:
        return self.location

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Any folder, also one with * ? [ in its name."""
        return cls(str(check_folder(Path(text)))) if os.path.isdir(text) else None

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """Unlike for files, a link to a folder is resolved too."""
        return replace(self, location=resolve(location))

    def is_there(self) -> bool:
        return os.path.isdir(self.location)

    def find_files(self) -> Iterator[FoundItem]:
        check_folder(Path(self.location))
        metadata = FolderMetadata(self.location)
        yield from self._describe_below(self.location, metadata)
        yield from metadata.missing()

    def scan_below(self, location: str) -> Iterator[FoundItem]:
        """The items at or below an absolute normal path in the folder."""
        for found in self._describe_below(location, FolderMetadata(self.location)):
            yield from self.members(found) if found.is_archive else (found,)

    def _describe_below(self, location: str, metadata: FolderMetadata) -> Iterator[FoundItem]:
        described = map(metadata.describe, find_below(location, root=self.location))
        return (item for item in described if item is not None)


class FileSource(LocalSource):
    """One regular file: an image, or an archive of them."""

    kind: ClassVar[str] = "file"

    @property
    def is_one_item(self) -> bool:
        return not is_archive(self.location)

    def find_files(self) -> Iterator[FoundItem]:
        """Nothing where an image is gone, like a folder whose only file is gone."""
        if os.path.lexists(self.location):
            yield from find_below(self.location, root=self.root)
        elif not self.is_one_item:
            raise InputError("no such file", at=self.location)


class CellSource(LocalSource):
    """The images in the cells of one Parquet file; its address may name the column of labels."""

    kind: ClassVar[str] = "cells"

    @classmethod
    def find(cls, text: str) -> Self | None:
        file, said = split_address(text)
        if said.keys() - {"label"} or not has_image_cells(file):
            return None
        return cls(make_address(os.path.abspath(file), replace(USUAL, **said)))

    def is_there(self) -> bool:
        return os.path.exists(split_address(self.location)[0])

    def find_files(self) -> Iterator[FoundItem]:
        file, _ = split_address(self.location)
        found = find_file(file, relative=below(self.root, file))
        if found.problem is not None:
            raise InputError(f"cannot be read: {found.problem.detail}", at=file)
        yield replace(found, is_archive=True)

    def members(self, archive: FoundItem) -> Iterator[FoundItem]:
        file, said = split_address(self.location)
        return scan_cells(Path(file), archive, label=said.get("label"))


class ListSource(LocalSource):
    """A text file with one path a line, relative to the file's folder or absolute; empty lines and # are skipped."""

    kind: ClassVar[str] = "list"
    reach = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".lst")

    def find_paths(self) -> Iterator[str]:
        """The absolute normal paths of the lines."""
        return (absolute_below(self.root, name) for name in read_lines(self.location))

    def find_files(self) -> Iterator[FoundItem]:
        """In the list's order; a path that is listed twice counts once."""
        root = self.root
        named: set[str] = set()
        walked: set[str] = set()

        def is_walked(path: str) -> bool:
            return bool(walked) and not walked.isdisjoint((*folders_above(path), os.path.abspath(os.sep)))

        for path in self.find_paths():
            if path in named or is_walked(path):
                continue
            for item in find_below(path, root=root):
                file = os.path.join(root, item.path)
                if file == path or not (file in named or is_walked(file)):
                    yield item
            (walked if os.path.isdir(path) else named).add(path)


class TableSource(LocalSource):
    """A table whose rows name files, relative to the table's folder or absolute."""

    kind: ClassVar[str] = "table"
    reach = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".parquet")

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A table, or its address with the names of columns."""
        table, columns = find_table(text)
        found = super().find(str(table))
        return None if found is None else cls(make_address(found.location, columns))

    def is_there(self) -> bool:
        return find_table(self.location)[0].exists()

    def find_files(self) -> Iterator[FoundItem]:
        """In the table's order. A row is one file, never an archive; the first row of a file counts."""
        (table, columns), root = find_table(self.location), self.root
        rows = read_table_rows(table, columns=columns)
        for path, _, row in first_rows(table, rows, lambda path: absolute_below(root, path)):
            found = find_file(path, relative=below(root, path))
            yield describe_item(replace(found, label=label_below(found.path)), row)


class GlobSource(LocalSource):
    """A glob pattern; * stays within a folder, ** matches any number of folders."""

    kind: ClassVar[str] = "glob"
    reach = Reach.PART

    @cached_property
    def root(self) -> str:
        """The leading folders without a wildcard."""
        parts = Path(self.location).parts
        first = next((i for i, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
        return os.path.join(*parts[:first])

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A text with a wildcard; an existing path is never a pattern."""
        is_meant = not os.path.lexists(text) and "\0" not in text and _WILDCARD.search(text)
        return cls(os.path.abspath(text)) if is_meant else None

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """Links before the first wildcard are resolved."""
        fixed = GlobSource(location).root
        tail = location.removeprefix(fixed).lstrip("/")
        return replace(self, location=f"{resolve(fixed).rstrip('/')}/{tail}")

    def is_there(self) -> bool:
        return os.path.isdir(self.root)

    def find_files(self) -> Iterator[FoundItem]:
        root, parts = self.root, Path(self.location).parts
        first = parts.index("**") if "**" in parts else len(parts)
        matches = sorted(glob.glob(os.path.join(*parts[:first])), key=lambda match: os.fsencode(match).split(b"/"))
        tail, empty = parts[first:], True
        for match in matches:
            if tail and not os.path.isdir(match):
                continue
            wanted = (lambda path: matches_pattern(path, tail)) if tail else None
            for item in find_below(match, root=root, wanted=wanted):
                empty = False
                yield item
        if empty:
            problem = "the pattern matches no file; * stays within a folder, ** matches any number of folders"
            raise InputError(problem, at=self.location)


def has_wildcard(text: str) -> bool:
    return _WILDCARD.search(text) is not None


def matches_pattern(path: str, parts: Sequence[str]) -> bool:
    """Whether a `/`-separated path, or a folder above it, matches the parts of a pattern; ** is any number of folders.

    As in a shell, only a part that begins with a dot matches a name that does.
    """
    while parts and parts[-1] == "**":
        parts = parts[:-1]
    return _match(path.split("/"), parts or ["*"])


def _match(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return True
    is_seen = bool(names) and (parts[0].startswith(".") or not names[0].startswith("."))
    if parts[0] == "**":
        return _match(names, parts[1:]) or (is_seen and _match(names[1:], parts))
    return is_seen and fnmatchcase(names[0], parts[0]) and _match(names[1:], parts[1:])


def read_lines(location: str) -> Iterator[str]:
    """The paths of a list file."""
    with reading(location), open(location, encoding="utf-8-sig", errors="surrogateescape") as file:
        number = 0
        while line := file.readline(_MAX_LINE_CHARACTERS):
            number += 1
            path = line.rstrip("\n")
            if "\0" in path or len(line) == _MAX_LINE_CHARACTERS:
                raise InputError("not a path; expected one path a line", at=location, where=f"line {number}")
            if path.strip() and not path.startswith("#"):
                yield path


def find_folder_around(path: Path, gallery: Path, sources: Iterable[ImageSource]) -> Path | None:
    """The folder of a gallery, or of one of its sources, that a path lies in."""
    folders = (gallery, *(Path(source.root) for source in sources if isinstance(source, FolderSource)))
    return next((folder for folder in folders if path.resolve().is_relative_to(folder.resolve())), None)
