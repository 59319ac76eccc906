"""What a gallery is built from: folders, archives, globs, and lists or tables that name images."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from index.archives import ARCHIVE_SUFFIXES, COMPRESSED_SUFFIXES, is_archive, scan_archive
from index.errors import ImageError, InputError
from index.folder_walk import FoundFile, check_folder, find_file, walk_folder
from index.images import printable_path
from index.items import FoundItem
from index.labels import folder_label
from index.tables import TableRow, label_conflict, read_table_rows

KINDS = ("folder", "archive", "glob", "list", "table", "file")
_TABLE_SUFFIXES = (".csv", ".parquet")
_LIST_SUFFIXES = (".txt", ".lst")
_WILDCARD = re.compile(r"[*?[]")
_MAX_LINE_CHARACTERS = 1 << 16  # far more than a path may have


@dataclass(frozen=True, slots=True)
class Source:
    """Where items come from.

    Attributes:
        kind: one of `KINDS`.
        location: the absolute path, or the absolute pattern of a glob, without symbolic links in its folders.
    """

    kind: str
    location: str

    @property
    def root(self) -> Path:
        """The folder that the items' paths are relative to."""
        if self.kind == "folder":
            return Path(self.location)
        if self.kind == "glob":
            return Path(*_fixed_parts(self.location))
        return Path(self.location).parent


class FolderResolver:
    """Finds the folders behind symbolic links, once for many files: sources that are one have one location then."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def resolve(self, source: Source) -> Source:
        """The source with no symbolic link in its folders."""
        location = source.location
        if source.kind == "folder":
            resolved = os.path.realpath(location)
        elif source.kind == "glob":
            fixed = str(source.root)
            resolved = self._folder(fixed).rstrip("/") + "/" + location.removeprefix(fixed).lstrip("/")
        else:
            folder, name = os.path.split(location)  # a link to a file keeps its own name, which says what it is
            resolved = os.path.join(self._folder(folder), name)
        return source if resolved == location else Source(source.kind, resolved)

    def _folder(self, folder: str) -> str:
        if folder not in self._known:
            self._known[folder] = os.path.realpath(folder)
        return self._known[folder]


def find_source(text: str) -> Source:
    """What a path or pattern names; a path that exists is never read as a pattern.

    Raises:
        InputError: nothing that can be scanned.
    """
    shown = printable_path(text)
    if not text:
        raise InputError("the source is an empty text: give a folder, archive, list, table or pattern")
    if os.path.isdir(text):
        return Source("folder", str(check_folder(Path(text))))
    if not os.path.lexists(text) and "\0" not in text and _WILDCARD.search(text):
        return FolderResolver().resolve(Source("glob", os.path.abspath(text)))
    if not os.path.exists(text):
        raise InputError(f"{shown}: no such file or folder, and no pattern with one of * ? [")
    if not os.path.isfile(text):
        raise InputError(f"{shown}: a socket, pipe or device; give a folder, archive, list, table or pattern")
    if text.lower().endswith(COMPRESSED_SUFFIXES):
        raise InputError(
            f"{shown}: the members of a compressed tar cannot be read in place; decompress it once and give the .tar"
        )
    location = os.path.abspath(text)
    name = os.path.basename(location)
    kinds = {"archive": ARCHIVE_SUFFIXES, "table": _TABLE_SUFFIXES, "list": _LIST_SUFFIXES}
    kind = next((kind for kind, suffixes in kinds.items() if name.lower().endswith(suffixes)), "file")
    return FolderResolver().resolve(Source(kind, location))


class EnterArchive(Protocol):
    """Gives the items of an archive file, which is called `archive` below the root."""

    def __call__(self, file: Path, *, archive: str) -> Iterator[FoundItem]: ...


def scan_source(source: Source, *, enter_archive: EnterArchive = scan_archive) -> Iterator[FoundItem]:
    """Every item once: of folders, globs and archives in a fixed order, of lists and tables in theirs.

    A tar or zip file met on the way is entered as a folder would be.

    Args:
        source: what to scan.
        enter_archive: how an archive's items are found.

    Raises:
        InputError: the source as a whole cannot be used.
        MissingDependencyError: a Parquet table without pyarrow.
    """
    if source.kind == "folder":
        return _scan_tree(source.location, root=source.location, enter_archive=enter_archive)
    if source.kind == "table":
        return _scan_table(source)
    scan = {"glob": _scan_glob, "list": _scan_list}.get(source.kind, _scan_file)
    return scan(source, enter_archive)


def scan_below(folder: Source, location: str) -> Iterator[FoundItem]:
    """The items of a folder source that lie at, or below, an absolute normal path in it."""
    return _scan_named(location, root=folder.location, enter_archive=scan_archive)


def _scan_file(source: Source, enter_archive: EnterArchive) -> Iterator[FoundItem]:
    if source.kind == "file" and not os.path.lexists(source.location):
        return  # as a folder whose only file is gone
    if not os.path.lexists(source.location):
        raise InputError(f"{printable_path(source.location)}: no such file")
    yield from _scan_named(source.location, root=str(source.root), enter_archive=enter_archive)


def _scan_named(
    path: str, *, root: str, enter_archive: EnterArchive, wanted: Callable[[str], bool] | None = None
) -> Iterator[FoundItem]:
    """A file, the members of an archive, or all below a folder, whatever an absolute normal path names.

    Of a folder's files only those that are wanted, by their path below it.
    """
    if not os.path.isdir(path):
        yield from _enter(find_file(path, relative=_below(root, path)), path, enter_archive)
    elif os.access(path, os.R_OK | os.X_OK):
        yield from _scan_tree(path, root=root, enter_archive=enter_archive, wanted=wanted)
    else:
        yield _locked(_below(root, path))


def _scan_tree(
    folder: str, *, root: str, enter_archive: EnterArchive, wanted: Callable[[str], bool] | None = None
) -> Iterator[FoundItem]:
    for found in walk_folder(Path(folder)):
        if wanted is None or wanted(found.relative_path):
            path = os.path.join(folder, found.relative_path)
            yield from _enter(_renamed(found, _below(root, path)), path, enter_archive)


def _below(root: str, path: str) -> str:
    """An absolute normal path relative to the root where it lies below it."""
    return path.removeprefix(root.rstrip("/") + "/")


def _enter(found: FoundFile, path: str, enter_archive: EnterArchive) -> Iterator[FoundItem]:
    """The items of one file: itself, or an archive's members."""
    key = found.relative_path
    if found.problem is None and is_archive(key):
        yield from enter_archive(Path(path), archive=key)
    else:
        label = _label_below_root(key)
        yield FoundItem(key, found.size_bytes, found.mtime_ns, label=label, problem=found.problem)


def _label_below_root(key: str) -> str | None:
    return None if key.startswith("/") else folder_label(key)


def _renamed(found: FoundFile, key: str) -> FoundFile:
    problem = found.problem
    if key == found.relative_path:
        return found
    if problem is not None:
        problem = ImageError(path=printable_path(key), reason=problem.reason, detail=problem.detail)
    return FoundFile(key, found.size_bytes, found.mtime_ns, problem)


def _locked(key: str) -> FoundItem:
    detail = "the folder cannot be listed"
    problem = ImageError(path=printable_path(key), reason="permission-denied", detail=detail)
    return FoundItem(key, 0, 0, label=_label_below_root(key), problem=problem)


def _fixed_parts(pattern: str) -> list[str]:
    """The leading parts of an absolute pattern in which nothing is a wildcard."""
    parts = Path(pattern).parts
    first = next((i for i, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
    return list(parts[:first])


def _scan_glob(source: Source, enter_archive: EnterArchive) -> Iterator[FoundItem]:
    """What lies at or below any path that matches; links are followed as `walk_folder` does, which never loops."""
    root, parts = str(source.root), Path(source.location).parts
    first = parts.index("**") if "**" in parts else len(parts)
    pattern = os.path.join(*parts[:first])
    matches = sorted(glob.glob(pattern), key=lambda match: os.fsencode(match).split(b"/"))
    tail = _Tail(parts[first:])
    empty = True
    for match in matches:
        if tail.parts and not os.path.isdir(match):
            continue
        wanted = tail.holds if tail.parts else None
        for item in _scan_named(match, root=root, enter_archive=enter_archive, wanted=wanted):
            empty = False
            yield item
    if empty:
        raise InputError(
            f"{printable_path(source.location)}: the pattern matches no file; "
            f"* stays within a folder, ** goes through any number of them"
        )


@dataclass(frozen=True, slots=True)
class _Tail:
    """The parts of a pattern from its first `**`, which stands for any number of folders."""

    parts: tuple[str, ...]

    def holds(self, path: str) -> bool:
        """Whether a path, or a folder that it lies in, matches."""
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


def _absolute(root: str, path: str) -> str:
    """A path of a list or table without `.`, `..` and double slashes."""
    full = os.path.normpath(os.path.join(root, path))
    return full[1:] if full.startswith("//") else full


def _scan_list(source: Source, enter_archive: EnterArchive) -> Iterator[FoundItem]:
    root = str(source.root)
    named: set[str] = set()
    walked: set[str] = set()
    for name in _read_list(source.location):
        path = _absolute(root, name)
        if path in named or _lies_in(path, walked):
            continue
        for item in _scan_named(path, root=root, enter_archive=enter_archive):
            file = os.path.join(root, item.archive or item.path)
            if file == path or not (file in named or _lies_in(file, walked)):
                yield item
        (walked if os.path.isdir(path) else named).add(path)


def _lies_in(path: str, folders: set[str]) -> bool:
    """Whether a path is one of the folders or lies below one."""
    ends = (end for end, character in enumerate(path + "/") if character == "/")
    return bool(folders) and any((path[:end] or "/") in folders for end in ends)


def _read_list(location: str) -> Iterator[str]:
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


def _scan_table(source: Source) -> Iterator[FoundItem]:
    """A row is one file; the first row of a file counts."""
    table, root = Path(source.location), str(source.root)
    labels: dict[str, str | None] = {}
    same: dict[str | None, str | None] = {}  # one object for each label
    for row in read_table_rows(table):
        path = _absolute(root, row.path)
        if path not in labels:
            labels[path] = same.setdefault(row.label, row.label)
            yield _row_item(find_file(path, relative=_below(root, path)), row)
        elif labels[path] != row.label:
            raise label_conflict(table, row, above=labels[path])


def _row_item(found: FoundFile, row: TableRow) -> FoundItem:
    key, problem = found.relative_path, found.problem
    if row.problem is not None:
        problem = ImageError(path=printable_path(key), reason="oversized-row", detail=row.problem)
    return FoundItem(
        key,
        found.size_bytes,
        found.mtime_ns,
        label=_label_below_root(key) if row.label is None else row.label or None,
        metadata=row.metadata or None,
        problem=problem,
    )
