"""Telling whether a folder is a gallery before anything is written into it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path

from index.durable import is_temporary
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.marks import GALLERY_MARK, is_vacant, read_mark, read_part
from index.text import printable_path
from index.versions.gallery_parts import make_mark
from index.versions.versions import list_versions
from index.versions.work_plan import BUILDING, describe_no_gallery


class Standing(Enum):
    """What a folder is to a command that is about to write."""

    MARKED = auto()
    """A gallery that carries its mark."""
    DAMAGED = auto()
    """Parts of a gallery without its mark."""
    VACANT = auto()
    """Empty: it may become a gallery."""
    FOREIGN = auto()
    """Somebody's folder."""


def recognise(folder: Path) -> Standing:
    """Look at a folder, and change nothing."""
    if read_mark(folder) is not None:
        return Standing.MARKED
    if is_vacant(folder):
        return Standing.VACANT
    return Standing.DAMAGED if any(_known_identities(folder)) else Standing.FOREIGN


def require_gallery(folder: Path) -> None:
    """See that a folder is a gallery, finished or not, before anything is written into it.

    Raises:
        GalleryError: it is none, or is damaged.
        InputError: it cannot be listed.
    """
    if require_own_folder(folder) is Standing.DAMAGED:
        raise find_damage(folder)


def require_own_folder(folder: Path) -> Standing:
    """As `require_gallery`, but a damaged gallery will do, if it has a version of ours; what it is.

    Raises:
        GalleryError: it is no gallery.
        InputError: it cannot be listed.
    """
    shown = printable_path(str(folder))
    if not folder.is_dir():
        raise GalleryError(shown, describe_no_gallery(folder))
    try:
        standing = recognise(folder)
    except OSError as error:
        raise InputError(f"{shown}: the gallery cannot be read: {error.strerror}") from error
    if standing in (Standing.VACANT, Standing.FOREIGN):
        raise GalleryError(shown, describe_no_gallery(folder))
    return standing


def find_damage(folder: Path) -> GalleryError:
    """The error of a gallery whose mark is damaged or missing."""
    mark = folder / GALLERY_MARK
    problem = "damaged: no mark of a gallery" if os.path.lexists(mark) else "the mark of the gallery is missing"
    return GalleryDamagedError(printable_path(str(mark)), problem)


def claim_gallery(folder: Path) -> str:
    """The identity of a gallery, under its lock; a mark that is damaged or missing is made again from its parts."""
    identity = read_mark(folder)
    if identity is not None:
        _sweep(folder)
        return identity
    identity = next(_known_identities(folder), None) or secrets.token_hex(16)
    _move_aside(folder / GALLERY_MARK)
    return make_mark(folder, identity=identity)


def _sweep(folder: Path) -> None:
    """Remove what a killed program had not finished in a gallery's own folder: nobody else gives such names."""
    for entry in list(os.scandir(folder)):
        if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
            Path(entry.path).unlink(missing_ok=True)


def restore_identity(folder: Path) -> tuple[str, bool]:
    """As `claim_gallery`; a mark of another identity than all parts have is damaged, and gets theirs: if it did."""
    identity, known = claim_gallery(folder), set(_known_identities(folder))
    if identity in known or len(known) != 1:
        return identity, False
    _move_aside(folder / GALLERY_MARK)
    return make_mark(folder, identity=known.pop()), True


def _move_aside(mark: Path) -> None:
    """Rename the file that has the mark's name, because it is damaged or somebody else's."""
    if os.path.lexists(mark):
        taken = mark.with_name(mark.name + ".damaged")
        number = 1
        while os.path.lexists(taken):
            number += 1
            taken = mark.with_name(f"{mark.name}.damaged-{number}")
        mark.rename(taken)


def _known_identities(folder: Path) -> Iterator[str]:
    """The identities that the parts of a gallery carry."""
    for part in (*list_versions(folder), folder / BUILDING):
        values = read_part(part)
        if values is not None and not part.is_symlink():
            yield str(values["gallery"])
