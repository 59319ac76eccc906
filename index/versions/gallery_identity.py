"""Telling whether a folder is a gallery before anything is written into it; those of earlier programs get a mark."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path

from index.durable import is_temporary
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.file_hash import hash_file
from index.marks import GALLERY_MARK, is_vacant, read_mark, read_part
from index.text import printable_path
from index.versions.gallery_parts import make_mark, mark_part
from index.versions.manifest import (
    CATALOG_NAME,
    DELETED_NAME,
    HELD_OUT_NAME,
    INDEX_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    PICTURE_FOLDER,
    Manifest,
    find_manifest,
)
from index.versions.no_gallery import describe_no_gallery
from index.versions.versions import list_versions, mark_version, read_current
from index.versions.work_plan import BUILDING, PLAN_NAME, announce, read_plan

_SQLITE_NAMES = {CATALOG_NAME + end for end in ("", "-wal", "-shm", "-journal")}
_VERSION_NAMES = {
    "ids",
    "vectors",
    MODEL_NAME,
    CATALOG_NAME,
    INDEX_NAME,
    HELD_OUT_NAME,
    DELETED_NAME,
    MANIFEST_NAME,
    PICTURE_FOLDER,
}
_CHECKPOINT = re.compile(r"\d{9}\.npy(\.tmp)?")


class Standing(Enum):
    """What a folder is to a command that is about to write."""

    MARKED = auto()
    """A gallery that carries its mark."""
    PROVEN = auto()
    """One of an earlier program: CURRENT and the manifest that it names agree, or a plan of ours is there."""
    DAMAGED = auto()
    """Parts of a gallery, but not enough to go on with."""
    VACANT = auto()
    """Empty: it may become a gallery."""
    FOREIGN = auto()
    """Somebody's folder."""


def recognise(folder: Path) -> Standing:
    """Look at a folder, and change nothing.

    Raises:
        GalleryError: it is a gallery of another program's format.
        OSError: it cannot be listed.
    """
    if read_mark(folder) is not None:
        return Standing.MARKED
    if is_vacant(folder):
        return Standing.VACANT
    if os.path.lexists(folder / GALLERY_MARK):  # damaged, or somebody else's
        return Standing.DAMAGED if _has_traces(folder) else Standing.FOREIGN
    try:
        version = read_current(folder)
        if version is not None:
            Manifest.read(version)
            return Standing.PROVEN
    except GalleryDamagedError:
        return Standing.DAMAGED if _has_traces(folder) else Standing.FOREIGN
    if read_plan(folder) is not None:
        return Standing.PROVEN
    return Standing.DAMAGED if _has_traces(folder) else Standing.FOREIGN


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
    """What is wrong with a gallery that is not marked and whose parts do not agree."""
    if os.path.lexists(folder / GALLERY_MARK):
        return GalleryDamagedError(printable_path(str(folder / GALLERY_MARK)), "damaged: no mark of a gallery")
    try:
        version = read_current(folder)
        if version is not None:
            Manifest.read(version)
    except GalleryError as error:
        return error
    return GalleryDamagedError(printable_path(str(folder)), "CURRENT, which names the version in use, is missing")


def claim_gallery(folder: Path) -> str:
    """The identity of a gallery, under its lock; one of an earlier program, and what it made there, is marked first.

    Only folders that prove to be ours are marked: versions whose manifest is one, work that has a plan.

    Raises:
        OSError: it cannot be written.
    """
    identity = read_mark(folder)
    if identity is not None:
        _sweep(folder)
        return identity
    identity = next(_known_identities(folder), None) or secrets.token_hex(16)
    for version in list_versions(folder):
        if read_part(version) is None and _is_version(version):
            _mark_version(folder, version, of=identity)
    building = folder / BUILDING
    if read_part(building) is None and (read_plan(folder) is not None or _is_leftover(folder)):
        mark_part(building, of=identity)
        _announce_unpublished(folder)
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


def _mark_version(gallery: Path, version: Path, *, of: str) -> None:
    """Mark a version of an earlier program, with a copy of its manifest unless CURRENT says that this is damaged."""
    try:
        current = read_current(gallery)
        if current is not None and current.folder.name == version.name:
            Manifest.read(current)
    except GalleryDamagedError:
        mark_part(version, of=of)
    else:
        mark_version(version, of=of)


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
    """Identities that parts carry already, where marking was stopped."""
    for part in (*list_versions(folder), folder / BUILDING):
        values = read_part(part)
        if values is not None and not part.is_symlink():
            yield str(values["gallery"])


def _is_version(folder: Path) -> bool:
    if folder.is_symlink():
        return False
    try:
        return find_manifest((folder / MANIFEST_NAME).read_bytes()) is not None
    except OSError:
        return False


def _has_traces(folder: Path) -> bool:
    return any(read_part(version) is not None or _is_version(version) for version in list_versions(folder))


def _is_leftover(folder: Path) -> bool:
    """Whether `building` holds what an earlier program began or removed, and was killed at, before there was a plan."""
    building, version = folder / BUILDING, read_current(folder)
    if version is None or not building.is_dir() or building.is_symlink():
        return False
    for entry in os.scandir(building):
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and entry.name == "checkpoints":
            if not all(map(_CHECKPOINT.fullmatch, os.listdir(entry))):
                return False
        elif is_folder and entry.name == "version":
            if not {*os.listdir(entry)} <= _VERSION_NAMES:
                return False
        elif entry.name == MODEL_NAME:
            if hash_file(building / MODEL_NAME) != Manifest.read(version).model_sha256:
                return False
        elif not entry.is_file(follow_symlinks=False) or entry.name not in {*_SQLITE_NAMES, PLAN_NAME + ".tmp"}:
            return False
    return True


def _announce_unpublished(folder: Path) -> None:
    """Let the next writer adopt what an earlier program, killed at its very last step, left complete."""
    newest = next(iter(list_versions(folder)), None)
    if newest is not None and read_part(newest) is not None:
        announce(folder, newest.name)
