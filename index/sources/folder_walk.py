"""Folders of web images: a sorted walk that follows links and never goes in circles."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from index.errors import ImageError, InputError
from index.images.image_files import modified_ns, reason_of
from index.marks import leave_out_own
from index.sources.items import FoundItem
from index.text import printable_path


def check_folder(folder: Path) -> Path:
    """The folder's absolute path."""
    if not folder.exists():
        raise InputError(f"{printable_path(str(folder))}: no such folder")
    if not folder.is_dir():
        raise InputError(f"{printable_path(str(folder))}: expected a folder of images, found a file")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{printable_path(str(folder))}: permission denied; the folder cannot be listed")
    return folder.resolve()


def walk_folder(folder: Path) -> Iterator[FoundItem]:
    """Every file below `folder`, depth first in sorted order, without labels; with a problem where it cannot be opened.

    Links are followed; one that leads back to a folder it lies in, or to a folder that was walked before, is
    reported, not entered. So every folder is entered at most once by its own path and once by links.
    """
    root = str(check_folder(folder))
    walk = _Walk()
    yield from walk.enter(root, relative="", status=os.stat(root), linked=False)
    while walk.open_folders:
        here = walk.open_folders[-1]
        name = next(here.names, None)
        if name is None:
            walk.open_folders.pop()
            continue
        path, relative = os.path.join(here.path, name), here.prefix + name
        try:
            status = os.stat(path)
        except OSError as error:
            yield _unusable(relative, reason=_link_reason(path, error), detail=str(error.strerror))
            continue
        if stat.S_ISDIR(status.st_mode):
            linked = here.linked or os.path.islink(path)
            yield from walk.enter(path, relative=relative, status=status, linked=linked)
        else:
            yield _as_found(relative, status)


def find_file(path: str, *, relative: str) -> FoundItem:
    """One file as `walk_folder` gives it, by its path; `relative` is what it is called."""
    try:
        return _as_found(relative, os.stat(path))
    except OSError as error:
        return _unusable(relative, reason=_link_reason(path, error), detail=str(error.strerror))


@dataclass(frozen=True, slots=True)
class _OpenFolder:
    """A folder being walked: what is left of its names, and whether a link was followed on the way to it."""

    identity: tuple[int, int]
    path: str
    prefix: str
    names: Iterator[str]
    linked: bool


@dataclass(frozen=True, slots=True)
class _Walk:
    """The folders from the root to the present one, and where each folder was entered first."""

    open_folders: list[_OpenFolder] = field(default_factory=list)
    entered: dict[tuple[int, int], str] = field(default_factory=dict)

    def enter(self, path: str, *, relative: str, status: os.stat_result, linked: bool) -> Iterator[FoundItem]:
        """Open a folder, or give the one problem why not."""
        identity = status.st_dev, status.st_ino
        if any(folder.identity == identity for folder in self.open_folders):
            yield _unusable(relative, reason="link-loop", detail="leads to a folder above it")
            return
        if linked and identity in self.entered:
            detail = f"this folder was already walked as {printable_path(self.entered[identity])}"
            yield _unusable(relative, reason="link-loop", detail=detail)
            return
        self.entered.setdefault(identity, relative)
        try:
            names = sorted(leave_out_own(path, os.listdir(path)), key=os.fsencode)
        except OSError as error:
            yield _unusable(relative, reason=reason_of(error), detail=str(error.strerror))
            return
        prefix = relative + "/" if relative else ""
        self.open_folders.append(_OpenFolder(identity, path, prefix, iter(names), linked))


def _as_found(relative: str, status: os.stat_result) -> FoundItem:
    if not stat.S_ISREG(status.st_mode):
        return _unusable(relative, reason="not-a-file", detail="not a regular file")
    return FoundItem(relative, status.st_size, modified_ns(status))


def _unusable(relative: str, *, reason: str, detail: str) -> FoundItem:
    problem = ImageError(path=printable_path(relative), reason=reason, detail=detail)
    return FoundItem(relative, 0, 0, problem=problem)


def _link_reason(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return "dangling-link"
    if error.errno == errno.ELOOP:
        return "link-loop"
    return reason_of(error)
