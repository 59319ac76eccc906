"""What is the same in every kind of source whose items are files of this machine."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from index.errors import ImageError, InputError
from index.sources.archive_scan import ARCHIVE_SUFFIXES, COMPRESSED_SUFFIXES, is_archive, scan_archive
from index.sources.folder_walk import check_folder, find_file, walk_folder
from index.sources.items import FoundItem, ItemFields, Place
from index.sources.source import NOTHING_KNOWN, ImageSource, Known, Reach
from index.sources.table_rows import (
    TableRow,
    find_table,
    folder_label,
    label_conflict,
    make_address,
    read_table_rows,
)
from index.text import printable_path

_WILDCARD = re.compile(r"[*?[]")
_MAX_LINE_CHARACTERS = 1 << 16  # far more than a path may have


def below(root: str, path: str) -> str:
    """An absolute normal path relative to the root where it lies below it, else as it is."""
    return path.removeprefix(root.rstrip("/") + "/")


def absolute_below(root: str, path: str) -> str:
    """A path of a list or table as an absolute one without `.`, `..` and double slashes."""
    full = os.path.normpath(os.path.join(root, path))
    return full[1:] if full.startswith("//") else full


def label_below(key: str) -> str | None:
    """The label by the first folder below the root; None for what lies outside of it."""
    return None if key.startswith("/") else folder_label(key)


def scan_path(
    path: str, *, root: str, known: Known, wanted: Callable[[str], bool] | None = None
) -> Iterator[FoundItem]:
    """A file, the members of an archive, or all below a folder, whatever an absolute normal path names.

    Of a folder's files only those that are wanted, by their path below it.
    """
    if not os.path.isdir(path):
        yield from _enter(find_file(path, relative=below(root, path)), path, known)
    elif os.access(path, os.R_OK | os.X_OK):
        yield from scan_tree(path, root=root, known=known, wanted=wanted)
    else:
        key, detail = below(root, path), "the folder cannot be listed"
        problem = ImageError(path=printable_path(key), reason="permission-denied", detail=detail)
        yield FoundItem(key, 0, 0, label=label_below(key), problem=problem)


def scan_tree(
    folder: str, *, root: str, known: Known, wanted: Callable[[str], bool] | None = None
) -> Iterator[FoundItem]:
    """The items of every file below a folder, as `walk_folder` finds them."""
    for found in walk_folder(Path(folder)):
        if wanted is None or wanted(found.path):
            path = os.path.join(folder, found.path)
            yield from _enter(_renamed(found, below(root, path)), path, known)


def _enter(found: FoundItem, path: str, known: Known) -> Iterator[FoundItem]:
    """The items of one file: itself, or an archive's members."""
    if found.problem is None and is_archive(found.path):
        yield from known.enter(found, lambda: scan_archive(Path(path), archive=found.path))
    else:
        yield replace(found, label=label_below(found.path))


def _renamed(found: FoundItem, key: str) -> FoundItem:
    problem = found.problem
    if key == found.path:
        return found
    if problem is not None:
        problem = ImageError(path=printable_path(key), reason=problem.reason, detail=problem.detail)
    return replace(found, path=key, problem=problem)


class LocalSource(ImageSource):
    """A source that is one file, unless a kind says otherwise; `suffixes` are how the names of such files end."""

    suffixes: ClassVar[tuple[str, ...]] = ("",)

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A regular file of such a name."""
        is_meant = os.path.isfile(text) and text.lower().endswith(cls.suffixes)
        return cls(os.path.abspath(text)) if is_meant else None

    @property
    def root(self) -> str:
        """The folder that the items' paths are relative to."""
        return os.path.dirname(self.location)

    def is_there(self) -> bool:
        """Whether there is anything of this name."""
        return os.path.exists(self.location)

    def locate(self, item: ItemFields) -> Place:
        """The file, or the part of an archive."""
        name = printable_path(os.path.join(self.root, item.path))
        if item.archive is None:
            return Place(Path(self.root, item.path), name)
        return Place(Path(self.root, item.archive), name, item.starts_at, item.size_bytes, item.mtime_ns)


class FolderSource(LocalSource):
    """All that lies below a folder."""

    kind: ClassVar[str] = "folder"

    @property
    def root(self) -> str:
        """The folder itself."""
        return self.location

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Whatever is a folder, also one with * ? [ in its name."""
        return cls(str(check_folder(Path(text)))) if os.path.isdir(text) else None

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """A link to a folder is that folder."""
        return replace(self, location=resolve(location))

    def is_there(self) -> bool:
        """Whether there is a folder."""
        return os.path.isdir(self.location)

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """Depth first in sorted order."""
        return scan_tree(self.location, root=self.location, known=known)

    def scan_below(self, location: str) -> Iterator[FoundItem]:
        """The items that lie at, or below, an absolute normal path in the folder."""
        return scan_path(location, root=self.location, known=NOTHING_KNOWN)


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


class ListSource(LocalSource):
    """What the lines of a text name, relative to the text's own folder or absolute; empty lines and # say nothing."""

    kind: ClassVar[str] = "list"
    reach: ClassVar[Reach] = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".lst")

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In the list's order; what is named twice is met once."""
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
    """The files that the rows of a table name, relative to the table's own folder or absolute."""

    kind: ClassVar[str] = "table"
    reach: ClassVar[Reach] = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".parquet")

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A table, or the address of one that says what its columns are called."""
        table, columns = find_table(text)
        found = super().find(str(table))
        return None if found is None else cls(make_address(found.location, columns))

    def is_there(self) -> bool:
        """Whether there is a file of this name."""
        return find_table(self.location)[0].exists()

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In the table's order. A row is one file, never an archive's members; the first row of a file counts."""
        (table, columns), root = find_table(self.location), self.root
        labels: dict[str, str | None] = {}
        same: dict[str | None, str | None] = {}  # one object for each label
        for row in read_table_rows(table, columns=columns):
            path = absolute_below(root, row.path)
            if path not in labels:
                labels[path] = same.setdefault(row.label, row.label)
                yield _row_item(find_file(path, relative=below(root, path)), row)
            elif labels[path] != row.label:
                raise label_conflict(table, row, above=labels[path])


class GlobSource(LocalSource):
    """What a pattern matches; * stays within a folder, ** goes through any number of them."""

    kind: ClassVar[str] = "glob"
    reach: ClassVar[Reach] = Reach.PART

    @cached_property
    def root(self) -> str:
        """The leading folders in whose names nothing is a wildcard."""
        parts = Path(self.location).parts
        first = next((i for i, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
        return os.path.join(*parts[:first])

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A text with a wildcard; what exists is never read as a pattern."""
        is_meant = not os.path.lexists(text) and "\0" not in text and _WILDCARD.search(text)
        return cls(os.path.abspath(text)) if is_meant else None

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """Links before the first wildcard are resolved."""
        fixed = GlobSource(location).root
        tail = location.removeprefix(fixed).lstrip("/")
        return replace(self, location=f"{resolve(fixed).rstrip('/')}/{tail}")

    def is_there(self) -> bool:
        """Whether the folder is there that the pattern looks into."""
        return os.path.isdir(self.root)

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In sorted order; links are followed as `walk_folder` does, which never loops."""
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
                f"* stays within a folder, ** goes through any number of them"
            )


def has_wildcard(text: str) -> bool:
    """Whether a text has one of * ? [ in it."""
    return _WILDCARD.search(text) is not None


@dataclass(frozen=True, slots=True)
class Tail:
    """The parts of a pattern from its first `**`, which stands for any number of folders."""

    parts: tuple[str, ...]

    def holds(self, path: str) -> bool:
        """Whether a path below, or a folder that it lies in, matches."""
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
        """The places reached, and those behind a `**` that stands for no folder."""
        for at, part in enumerate(self.parts):
            if at in reached and part == "**":
                reached.add(at + 1)
        return reached


def _row_item(found: FoundItem, row: TableRow) -> FoundItem:
    problem = found.problem
    if row.problem is not None:
        problem = ImageError(path=printable_path(found.path), reason="oversized-row", detail=row.problem)
    label = label_below(found.path) if row.label is None else row.label or None
    return replace(found, label=label, metadata=row.metadata or None, problem=problem)


def _lies_in(path: str, folders: set[str]) -> bool:
    ends = (end for end, character in enumerate(path + "/") if character == "/")
    return bool(folders) and any((path[:end] or "/") in folders for end in ends)


def read_lines(location: str) -> Iterator[str]:
    """The paths that a text names, one a line."""
    shown = printable_path(location)
    try:
        with open(location, encoding="utf-8-sig", errors="surrogateescape") as file:
            number = 0
            while line := file.readline(_MAX_LINE_CHARACTERS):
                number += 1
                path = line.rstrip("\n")
                if "\0" in path or len(line) == _MAX_LINE_CHARACTERS:
                    raise InputError(f"{shown}, line {number}: no path; a list has one path a line")
                if path.strip() and not path.startswith("#"):
                    yield path
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error
