"""What sources on the disks of this machine share: how their items are found, called and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from index.errors import ImageError
from index.sources.archive_scan import is_archive, scan_archive
from index.sources.folder_walk import find_file, walk_folder
from index.sources.given_labels import folder_label
from index.sources.items import FoundItem
from index.sources.source import Known
from index.text import printable_path


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
        yield _locked(below(root, path))


def scan_tree(
    folder: str, *, root: str, known: Known, wanted: Callable[[str], bool] | None = None
) -> Iterator[FoundItem]:
    """The items of every file below a folder, as `walk_folder` finds them.

    Raises:
        InputError: it is no readable folder.
    """
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


def _locked(key: str) -> FoundItem:
    detail = "the folder cannot be listed"
    problem = ImageError(path=printable_path(key), reason="permission-denied", detail=detail)
    return FoundItem(key, 0, 0, label=label_below(key), problem=problem)
