"""Marking a gallery and its parts, and removing parts: nothing goes that does not carry the gallery's identity."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from index.durable import create_durably, write_durably
from index.errors import GalleryDamagedError, GalleryError
from index.images import printable_path
from index.marks import (
    GALLERY_KIND,
    GALLERY_MARK,
    PART_KIND,
    PART_MARK,
    is_part,
    is_vacant,
    read_mark,
)

_REMOVAL_ATTEMPTS = 3


def make_mark(gallery: Path, *, identity: str | None = None) -> str:
    """Mark a folder as a gallery, of a new identity or a known one; that of the mark which is there in the end.

    Raises:
        GalleryError: something else has the mark's name.
        OSError: the folder cannot be written.
    """
    document = {"kind": GALLERY_KIND, "id": identity or secrets.token_hex(16)}
    create_durably(gallery / GALLERY_MARK, _to_bytes(document))
    found = read_mark(gallery)
    if found is None:
        raise GalleryDamagedError(printable_path(str(gallery / GALLERY_MARK)), "damaged: it is no gallery's mark")
    return found


def identify(gallery: Path) -> str:
    """The identity of a gallery that is being written.

    Raises:
        GalleryError: it has none.
    """
    identity = read_mark(gallery)
    if identity is None:
        raise GalleryDamagedError(printable_path(str(gallery / GALLERY_MARK)), "damaged or missing")
    return identity


def mark_part(folder: Path, *, of: str, **details: Any) -> None:
    """Let a folder that the program made say so."""
    write_durably(folder / PART_MARK, _to_bytes({"kind": PART_KIND, "gallery": of, **details}))


def make_part(gallery: Path, name: str) -> Path:
    """A folder of a marked gallery for what may be removed later; one that is new or empty becomes its part.

    Raises:
        GalleryError: a folder of this name is there that the gallery did not make.
        OSError: it cannot be made.
    """
    folder, identity = gallery / name, identify(gallery)
    folder.mkdir(exist_ok=True)
    if is_part(folder, of=identity):
        return folder
    if folder.is_symlink() or not is_vacant(folder):
        raise GalleryError(
            printable_path(str(folder)),
            "the gallery needs this name, but did not make this folder; nothing in it was touched: move it elsewhere "
            "and run the command again",
        )
    mark_part(folder, of=identity)
    return folder


def remove_part(folder: Path, *, of: str) -> bool:
    """Remove a part of a gallery with all that is in it; whether it was one.

    Its mark goes last, so that what a kill leaves is a part still, or empty.

    Raises:
        OSError: something in it cannot be removed.
    """
    if not is_part(folder, of=of):
        return False
    for attempt in range(_REMOVAL_ATTEMPTS):
        try:
            for entry in list(os.scandir(folder)):
                if entry.name == PART_MARK:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
            (folder / PART_MARK).unlink(missing_ok=True)
            folder.rmdir()
        except FileNotFoundError:  # another reader's own file, gone meanwhile
            if not folder.exists():
                return True
        except OSError as error:  # a reader of the catalogue may put a file of its own beside it meanwhile
            mark_part(folder, of=of)
            if error.errno != errno.ENOTEMPTY or attempt + 1 == _REMOVAL_ATTEMPTS:
                raise
        else:
            return True
    return True


def _to_bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode("ascii") + b"\n"
