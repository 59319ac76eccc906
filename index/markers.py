"""Marks of galleries and of their parts, which distinguish them from foreign folders.

GALLERY/gallery.json        {"kind": "retrieval gallery", "id": 32 hexadecimal digits}, made before anything else
GALLERY/PART/part.json      {"kind": "part of a retrieval gallery", "gallery": the id, ...}, in every folder that may
                            ever be removed: `building`, a version; only files that the program writes go
"""

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from index.durable import is_temporary
from index.errors import InputError

GALLERY_MARK = "gallery.json"
PART_MARK = "part.json"
GALLERY_KIND = "retrieval gallery"
PART_KIND = "part of a retrieval gallery"
LOCK_NAME = ".lock"
BESIDE = "-gallery"
"""The suffix of the default gallery beside a folder: `photos-gallery` of `photos`."""
# Names that a folder walk skips in a gallery among photos; uploads are a source of their own.
_GALLERYS_OWN = {GALLERY_MARK, LOCK_NAME, "CURRENT", "versions", "building", "upgrade", "shards", "insights"} | {
    "annotations"
}
EXPORT_MARK, EXPORT_CARD = "manifest.json", "README.md"
_EXPORTS_OWN = {EXPORT_MARK, EXPORT_CARD}  # of `retrieval dataset export`
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_MOST_BYTES = 1 << 24


def read_mark(gallery: Path) -> str | None:
    """The identity of a gallery; None for a folder without a mark."""
    values = read_object(gallery / GALLERY_MARK)
    identity = None if values is None or values.get("kind") != GALLERY_KIND else values.get("id")
    return identity if isinstance(identity, str) and _IDENTITY.fullmatch(identity) else None


def is_training_folder(folder: Path) -> bool:
    """Whether a folder is a run of `retrieval train`; scans skip it."""
    return "run_id" in (read_object(folder / "config.json") or {})


def read_part(folder: Path) -> Mapping[str, Any] | None:
    """The mark of a gallery's part, with the identity as `gallery`; None without one."""
    values = read_object(folder / PART_MARK)
    if values is None or values.get("kind") != PART_KIND:
        return None
    identity = values.get("gallery")
    return values if isinstance(identity, str) and _IDENTITY.fullmatch(identity) else None


def is_part(folder: Path, *, of: str | None) -> bool:
    """Whether a folder, not a link, is a part of the gallery with this identity."""
    if of is None or folder.is_symlink():
        return False
    part = read_part(folder)
    return part is not None and part["gallery"] == of


def is_vacant(folder: Path) -> bool:
    """Whether a folder is empty but for an empty lock and temporary files of a killed program."""
    return all(is_temporary(name) or is_empty_lock(folder, name) for name in os.listdir(folder))


def is_empty_lock(folder: Path, name: str) -> bool:
    """Whether a name in a folder is that of an empty lock file."""
    if name != LOCK_NAME:
        return False
    try:
        status = os.lstat(os.path.join(folder, name))
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def leave_out_own(folder: str, names: Sequence[str]) -> list[str]:
    """The names in a folder without a lock, a gallery's own files, and those beside an exported dataset."""
    if GALLERY_MARK in names and read_mark(Path(folder)) is not None:
        return [name for name in names if name not in _GALLERYS_OWN]
    if EXPORT_MARK in names and (read_object(Path(folder, EXPORT_MARK)) or {}).keys() >= {"gallery", "left_out"}:
        return [name for name in names if name not in _EXPORTS_OWN]
    return [name for name in names if not is_empty_lock(Path(folder), name)]


def read_object(path: Path) -> Mapping[str, Any] | None:
    """A JSON object from a regular file, not through a link; None without one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            values = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return values if isinstance(values, dict) else None


def check_object(values: Any, schema: Mapping[str, Any], *, name: str) -> None:
    """Check a JSON value against a schema of keys and types; an object with a schema of its own may be null."""
    if not isinstance(values, dict) or set(values) != set(schema):
        keys = ", ".join(sorted(schema))
        raise InputError(f"{name} must be an object with exactly the keys {keys}, got {values!r:.200}")
    for key, kind in schema.items():
        if isinstance(kind, Mapping):
            if values[key] is not None:
                check_object(values[key], kind, name=f"{name}'s {key}")
        elif not isinstance(values[key], kind):
            wanted = getattr(kind, "__name__", kind)
            raise InputError(f"{name}'s {key} must be {wanted}, got {values[key]!r:.200}")
