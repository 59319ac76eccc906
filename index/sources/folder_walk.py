"""Folder walk: sorted, following links without loops."""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from index.errors import InputError
from index.images.image_files import modified_ns, reason_of
from index.items import FoundItem
from index.markers import leave_out_own
from index.text import printable_path


def check_folder(folder: Path) -> Path:
    if not folder.exists():
        raise InputError("no such folder", at=folder)
    if not folder.is_dir():
        raise InputError("expected a folder of images, found a file", at=folder)
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError("permission denied; the folder cannot be listed", at=folder)
    return folder.resolve()


def walk_folder(folder: Path) -> Iterator[FoundItem]:
    """Every file below `folder`, depth first in sorted order, without labels; an unreadable one has a problem.

    Links are followed. A link to a folder above it, or to one walked before, is an item with a problem. So every folder
    is entered at most once by its own path and once by links.
    """
    open_folders, entered = list[_OpenFolder](), dict[tuple[int, int], str]()

    def enter(path: str, relative: str, status: os.stat_result, *, linked: bool) -> FoundItem | None:
        identity = status.st_dev, status.st_ino
        if any(folder.identity == identity for folder in open_folders):
            return FoundItem(relative, 0, 0).with_problem("link-loop", "leads to a folder above it")
        if linked and identity in entered:
            detail = f"this folder was already walked as {printable_path(entered[identity])}"
            return FoundItem(relative, 0, 0).with_problem("link-loop", detail)
        entered.setdefault(identity, relative)
        try:
            names = sorted(leave_out_own(path, os.listdir(path)), key=os.fsencode)
        except OSError as error:
            return FoundItem(relative, 0, 0).with_problem(reason_of(error), str(error.strerror))
        open_folders.append(_OpenFolder(identity, path, relative and f"{relative}/", iter(names), linked))
        return None

    root = str(check_folder(folder))
    problem = enter(root, "", os.stat(root), linked=False)
    if problem is not None:
        yield problem
    while open_folders:
        here = open_folders[-1]
        name = next(here.names, None)
        if name is None:
            open_folders.pop()
            continue
        path, relative = os.path.join(here.path, name), here.prefix + name
        try:
            status = os.stat(path)
        except OSError as error:
            yield FoundItem(relative, 0, 0).with_problem(_link_reason(path, error), str(error.strerror))
            continue
        if not stat.S_ISDIR(status.st_mode):
            yield _as_found(relative, status)
        elif (problem := enter(path, relative, status, linked=here.linked or os.path.islink(path))) is not None:
            yield problem


def find_file(path: str, *, relative: str) -> FoundItem:
    """One file as `walk_folder` gives it, named `relative`."""
    try:
        return _as_found(relative, os.stat(path))
    except OSError as error:
        return FoundItem(relative, 0, 0).with_problem(_link_reason(path, error), str(error.strerror))


@dataclass(frozen=True, slots=True)
class _OpenFolder:
    """A folder being walked: its remaining names, and whether a link led to it."""

    identity: tuple[int, int]
    path: str
    prefix: str
    names: Iterator[str]
    linked: bool


def _as_found(relative: str, status: os.stat_result) -> FoundItem:
    if not stat.S_ISREG(status.st_mode):
        return FoundItem(relative, 0, 0).with_problem("not-a-file", "not a regular file")
    return FoundItem(relative, status.st_size, modified_ns(status))


def _link_reason(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return "dangling-link"
    if error.errno == errno.ELOOP:
        return "link-loop"
    return reason_of(error)
