"""Local sources: folders, files, archives, lists, tables and glob patterns."""

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from index.errors import InputError
from index.paths import below, folders_above, names_no_root
from index.sources.archive_scan import ARCHIVE_SUFFIXES, COMPRESSED_SUFFIXES, is_archive, scan_archive
from index.sources.folder_metadata import FolderMetadata, describe_item
from index.sources.folder_walk import check_folder, find_file, walk_folder
from index.sources.image_cells import has_image_cells, scan_cells
from index.sources.items import FoundItem, ItemFields, Place
from index.sources.source import NOTHING_KNOWN, ImageSource, Known, Reach
from index.sources.table_rows import (
    USUAL,
    find_table,
    folder_label,
    label_conflict,
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
    return folder_label(key) if names_no_root(key) else None


def scan_path(
    path: str, *, root: str, known: Known, wanted: Callable[[str], bool] | None = None
) -> Iterator[FoundItem]:
    """Scan a file, an archive or a folder, given as an absolute normal path.

    `wanted` selects files of a folder by their path below it.
    """
    if not os.path.isdir(path):
        yield from _enter(find_file(path, relative=below(root, path)), path, known)
    elif os.access(path, os.R_OK | os.X_OK):
        yield from scan_tree(path, root=root, known=known, wanted=wanted)
    else:
        found = FoundItem(below(root, path), 0, 0, label=label_below(below(root, path)))
        yield found.with_problem("permission-denied", "the folder cannot be listed")


def scan_tree(
    folder: str, *, root: str, known: Known, wanted: Callable[[str], bool] | None = None
) -> Iterator[FoundItem]:
    """Scan all files below a folder, in the order of `walk_folder`."""
    for found in walk_folder(Path(folder)):
        if wanted is None or wanted(found.path):
            path = os.path.join(folder, found.path)
            yield from _enter(_renamed(found, below(root, path)), path, known)


def _enter(found: FoundItem, path: str, known: Known) -> Iterator[FoundItem]:
    """The items of one file: itself, or an archive's members."""
    if found.problem is None and is_archive(found.path):
        yield from known.enter(found, lambda: scan_archive(Path(path), archive=found.path))
    elif found.problem is None and has_image_cells(path):
        yield from known.enter(found, lambda: scan_cells(Path(path), found))
    else:
        yield replace(found, label=label_below(found.path))


def _renamed(found: FoundItem, key: str) -> FoundItem:
    if key == found.path:
        return found
    problem, renamed = found.problem, replace(found, path=key)
    return renamed if problem is None else renamed.with_problem(problem.reason, problem.detail)


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

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        metadata = FolderMetadata(self.location)
        yield from _described(scan_tree(self.location, root=self.location, known=known), metadata)
        yield from metadata.missing()

    def scan_below(self, location: str) -> Iterator[FoundItem]:
        """The items at or below an absolute normal path in the folder."""
        found = scan_path(location, root=self.location, known=NOTHING_KNOWN)
        return _described(found, FolderMetadata(self.location))


class FileSource(LocalSource):
    """One regular file, which is the only item."""

    kind: ClassVar[str] = "file"
    is_one_item: ClassVar[bool] = True

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """Nothing where the file is gone, like a folder whose only file is gone."""
        if os.path.lexists(self.location):
            yield from scan_path(self.location, root=self.root, known=known)


class ArchiveSource(LocalSource):
    """The members of one tar or zip file."""

    kind: ClassVar[str] = "archive"
    suffixes: ClassVar[tuple[str, ...]] = ARCHIVE_SUFFIXES + COMPRESSED_SUFFIXES

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        if not os.path.lexists(self.location):
            raise InputError(f"{printable_path(self.location)}: no such file")
        return scan_path(self.location, root=self.root, known=known)


class CellSource(LocalSource):
    """The images in the cells of one Parquet or Arrow file; its address may name the column of labels."""

    kind: ClassVar[str] = "cells"

    @classmethod
    def find(cls, text: str) -> Self | None:
        if os.path.isfile(text):
            file, said = text, dict[str, str]()
        else:
            file, said = split_address(text)
        if said.keys() - {"label"} or not has_image_cells(file):
            return None
        return cls(make_address(os.path.abspath(file), replace(USUAL, **said)))

    def is_there(self) -> bool:
        return os.path.exists(self._open()[0])

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        file, label = self._open()
        found = find_file(file, relative=below(self.root, file))
        if found.problem is not None:
            raise InputError(f"{printable_path(file)}: cannot be read: {found.problem.detail}")
        yield from known.enter(found, lambda: scan_cells(Path(file), found, label=label))

    def _open(self) -> tuple[str, str | None]:
        """The file, and the column of labels if it was named."""
        if os.path.isfile(self.location):
            return self.location, None
        file, said = split_address(self.location)
        return file, said.get("label")


class ListSource(LocalSource):
    """A text file with one path a line, relative to the file's folder or absolute; empty lines and # are skipped."""

    kind: ClassVar[str] = "list"
    reach: ClassVar[Reach] = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".lst")

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In the list's order; a path that is listed twice counts once."""
        root = self.root
        named: set[str] = set()
        walked: set[str] = set()
        for name in read_lines(self.location):
            path = absolute_below(root, name)
            if path in named or _lies_in(path, walked):
                continue
            for item in scan_path(path, root=root, known=known):
                file = os.path.join(root, item.archive or item.path)
                if file == path or not (file in named or _lies_in(file, walked)):
                    yield item
            (walked if os.path.isdir(path) else named).add(path)


class TableSource(LocalSource):
    """A table whose rows name files, relative to the table's folder or absolute."""

    kind: ClassVar[str] = "table"
    reach: ClassVar[Reach] = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".parquet")

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A table, or its address with the names of columns."""
        table, columns = find_table(text)
        found = super().find(str(table))
        return None if found is None else cls(make_address(found.location, columns))

    def is_there(self) -> bool:
        return find_table(self.location)[0].exists()

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In the table's order. A row is one file, never an archive; the first row of a file counts."""
        (table, columns), root = find_table(self.location), self.root
        labels: dict[str, str | None] = {}
        same: dict[str | None, str | None] = {}  # one object for each label
        for row in read_table_rows(table, columns=columns):
            path = absolute_below(root, row.path)
            if path not in labels:
                labels[path] = same.setdefault(row.label, row.label)
                found = find_file(path, relative=below(root, path))
                yield describe_item(replace(found, label=label_below(found.path)), row)
            elif labels[path] != row.label:
                raise label_conflict(table, row, above=labels[path])


class GlobSource(LocalSource):
    """A glob pattern; * stays within a folder, ** matches any number of folders."""

    kind: ClassVar[str] = "glob"
    reach: ClassVar[Reach] = Reach.PART

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

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        root, parts = self.root, Path(self.location).parts
        first = parts.index("**") if "**" in parts else len(parts)
        matches = sorted(glob.glob(os.path.join(*parts[:first])), key=lambda match: os.fsencode(match).split(b"/"))
        tail = Tail(parts[first:])
        empty = True
        for match in matches:
            if tail.parts and not os.path.isdir(match):
                continue
            wanted = tail.holds if tail.parts else None
            for item in scan_path(match, root=root, known=known, wanted=wanted):
                empty = False
                yield item
        if empty:
            raise InputError(
                f"{printable_path(self.location)}: the pattern matches no file; "
                "* stays within a folder, ** matches any number of folders"
            )


def has_wildcard(text: str) -> bool:
    return _WILDCARD.search(text) is not None


@dataclass(frozen=True, slots=True)
class Tail:
    """The parts of a pattern from its first `**` on."""

    parts: tuple[str, ...]

    def holds(self, path: str) -> bool:
        """Whether a path, or a folder above it, matches."""
        reached = self._with_no_folders({0})
        for name in path.split("/"):
            reached = self._with_no_folders({place for at in reached for place in self._step(at, name)})
            if len(self.parts) in reached:
                return True
        return False

    def _step(self, at: int, name: str) -> Iterator[int]:
        part = self.parts[at] if at < len(self.parts) else ""
        if name.startswith(".") and not part.startswith("."):  # as in a shell
            return
        if part == "**":
            yield at
        elif fnmatchcase(name, part):
            yield at + 1

    def _with_no_folders(self, reached: set[int]) -> set[int]:
        """The reached parts, and those behind a `**` that matches no folder."""
        for at, part in enumerate(self.parts):
            if at in reached and part == "**":
                reached.add(at + 1)
        return reached


def _described(found: Iterator[FoundItem], metadata: FolderMetadata) -> Iterator[FoundItem]:
    return (item for item in map(metadata.describe, found) if item is not None)


def _lies_in(path: str, folders: set[str]) -> bool:
    return bool(folders) and not folders.isdisjoint((*folders_above(path), os.path.abspath(os.sep)))


def read_lines(location: str) -> Iterator[str]:
    """The paths of a list file."""
    shown = printable_path(location)
    try:
        with open(location, encoding="utf-8-sig", errors="surrogateescape") as file:
            number = 0
            while line := file.readline(_MAX_LINE_CHARACTERS):
                number += 1
                path = line.rstrip("\n")
                if "\0" in path or len(line) == _MAX_LINE_CHARACTERS:
                    raise InputError(f"{shown}, line {number}: not a path; expected one path a line")
                if path.strip() and not path.startswith("#"):
                    yield path
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error


def find_folder_around(path: Path, gallery: Path, sources: Iterable[ImageSource]) -> Path | None:
    """The folder of a gallery, or of one of its sources, that a path lies in."""
    folders = (gallery, *(Path(source.root) for source in sources if isinstance(source, FolderSource)))
    return next((folder for folder in folders if path.resolve().is_relative_to(folder.resolve())), None)
