"""Paths: the separators, drives and absolute names of the system, and `/` in every catalogue.

`system` is the path module of the operating system; tests give that of Windows.
"""

import os
import re
from collections.abc import Iterator
from types import ModuleType

_PORTS = "0123456789\u00b9\u00b2\u00b3"  # Windows takes superscripts for digits
_DEVICES = {"con", "prn", "aux", "nul", *(f"{kind}{port}" for kind in ("com", "lpt") for port in _PORTS)}


def is_device(name: str) -> bool:
    """Whether Windows takes a name of a file or folder for a device, whatever its suffix."""
    return name.partition(".")[0].strip().casefold() in _DEVICES


def is_name_on_windows(name: str) -> bool:
    """Whether Windows keeps a file or folder of this name under it."""
    return not (re.search(r'[<>:"/\\|?*\0-\x1f]', name) or name != name.rstrip(" .") or is_device(name))


def below(root: str, path: str, *, system: ModuleType = os.path) -> str:
    """An absolute normal path, with `/`; relative to the root where it lies below it."""
    return _with_slashes(path.removeprefix(root.rstrip(system.sep) + system.sep), system)


def path_from(start: str, path: str, *, system: ModuleType = os.path) -> str:
    """An absolute path with `/`, relative to a folder; absolute where the folder is on another drive."""
    try:
        return _with_slashes(system.relpath(path, start), system)
    except ValueError:  # of Windows, for another drive
        return _with_slashes(path, system)


def names_no_parent(path: str, *, system: ModuleType = os.path) -> bool:
    """Whether a path has no part `..`."""
    return ".." not in _with_slashes(path, system).split("/")


def names_no_root(path: str, *, system: ModuleType = os.path) -> bool:
    """Whether a path begins neither at a root nor on a drive."""
    return not system.splitdrive(path)[0] and not _with_slashes(path, system).startswith("/")


def folders_above(path: str, *, system: ModuleType = os.path) -> Iterator[str]:
    """A path or address, and the folders above it but the root."""
    while path and (above := system.dirname(path)) != path:
        yield path
        path = above


def _with_slashes(path: str, system: ModuleType) -> str:
    return path.replace(system.sep, "/")
