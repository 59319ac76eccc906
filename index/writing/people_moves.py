"""Moving decisions and uploads from where earlier programs kept them to `GALLERY/people/`, cut off where it may."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from index.catalog.reader import read_catalog
from index.durable import replacing, sync_path
from index.errors import GalleryError, InputError
from index.limits import LOCK_WAIT_S
from index.progress import BeginStep, no_steps
from index.text import printable_path
from index.versions.gallery_identity import require_gallery
from index.versions.gallery_lock import lock_gallery
from index.versions.manifest import CATALOG_NAME
from index.versions.people import (
    ADDED,
    DECISIONS,
    INCOMING,
    PEOPLE,
    added_folder,
    decisions_file,
    former_decisions_file,
    people_folder,
)
from index.versions.versions import read_current

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 10.0
_SENT_NAME = re.compile(r"[0-9a-f]{64}\.[a-z0-9]{1,8}(\.tmp)?")  # of an image that was sent: its SHA-256


def bring_people(gallery: Path, *, wait_s: float = LOCK_WAIT_S, begin_step: BeginStep = no_steps) -> None:
    """Move what people made to its place, under the gallery's lock; nothing is done where it is there already.

    Another process that writes the gallery is waited for, which is a step.

    Raises:
        GalleryError: another process is writing the gallery, or it is damaged.
        InputError: the gallery may not be written.
    """
    if _is_to_move(gallery):
        require_gallery(gallery)
        with lock_gallery(gallery, wait_s=wait_s, begin_step=begin_step):
            move_people(gallery)


def try_bring_people(gallery: Path) -> None:
    """As `bring_people`; where it cannot be done now, what people made goes on to be used where it is."""
    try:
        bring_people(gallery, wait_s=0)
    except (GalleryError, InputError) as error:
        logger.info("what people made is not moved now: %s", error)


def move_people(gallery: Path) -> None:
    """Move what people made of a gallery with a finished version to its place; to be called under the lock.

    Every step is one rename, or can be done again. What cannot be moved is still used where it is, and is named in the
    log.

    Raises:
        GalleryError: it is damaged.
    """
    if not _is_to_move(gallery):
        return
    try:
        _move_decisions(gallery)
        _move_added(gallery)
        _drop_incoming(gallery)
    except OSError as error:
        logger.warning(
            "%s: what people made cannot be moved to its folder %s: %s; it is used where it is",
            printable_path(str(gallery)), PEOPLE, error,
        )  # fmt: skip


def _is_to_move(gallery: Path) -> bool:
    is_there = any(os.path.lexists(gallery / name) for name in (DECISIONS, ADDED, INCOMING))
    return is_there and read_current(gallery) is not None


def _make_place(gallery: Path) -> None:
    people = people_folder(gallery)
    if not people.is_dir():
        people.mkdir()
        sync_path(gallery)


def _move_decisions(gallery: Path) -> None:
    """Move the database while nobody can write it, after what a killed process left half done was undone."""
    old, new = former_decisions_file(gallery), decisions_file(gallery)
    if not old.is_file():
        return
    shown = printable_path(str(old))
    if new.exists():
        logger.warning("%s: decisions are in %s too; `retrieval serve` brings them together", shown, new.name)
        return
    try:
        uri = f"{old.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_WAIT_SECONDS)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()  # takes a write-ahead log in
            connection.execute("BEGIN EXCLUSIVE")  # rolls back a journal that was left
            old.with_name(f"{old.name}-journal").unlink(missing_ok=True)  # of no use any more, if one is there
            _make_place(gallery)
            old.rename(new)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        logger.warning("%s: the decisions cannot be moved: %s; they are used where they are", shown, error)
        return
    sync_path(new.parent)
    sync_path(gallery)


def _move_added(gallery: Path) -> None:
    old, new = gallery / ADDED, people_folder(gallery) / ADDED
    if not os.path.lexists(old) or not _is_ours(gallery, old):
        return
    _make_place(gallery)
    if os.path.lexists(new) and not (old.is_symlink() and old.resolve() == new.resolve()):
        _merge(old, new)
    elif not old.is_symlink():
        old.rename(new)
    else:
        _move_link(old, new)
    sync_path(new.parent)
    sync_path(gallery)


def _is_ours(gallery: Path, old: Path) -> bool:
    """Whether a folder `added` is a server's: a source of the gallery, or of files named by their bytes alone."""
    current = read_current(gallery)
    if current is None or not old.is_dir():
        return False
    try:
        with read_catalog(current.folder / CATALOG_NAME) as catalog:
            if catalog.added_source() is not None and added_folder(gallery) == old.resolve():
                return True
    except GalleryError:  # of a damaged version; the names tell too
        pass
    return all(_SENT_NAME.fullmatch(file.name) for file in _walk(old))


def _move_link(old: Path, new: Path) -> None:
    """A link that is relative must lead to the same place from one folder deeper."""
    target = os.readlink(old)
    if not os.path.isabs(target):
        target = os.path.relpath(os.path.realpath(old), os.path.realpath(new.parent))
    if not os.path.lexists(new):
        temporary = new.with_name(new.name + ".tmp")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.rename(new)
        sync_path(new.parent)
    old.unlink()


def _merge(old: Path, new: Path) -> None:
    """Move the files of one folder into another; of two with one name and the same bytes one stays.

    They are there twice where an earlier program went on beside this one.
    """
    for file in list(_walk(old)):
        target = new / file.relative_to(old)
        if target.exists() and file.read_bytes() == target.read_bytes():
            file.unlink()
            continue
        if target.exists():
            logger.warning("%s: another file has its place; it stays there", printable_path(str(file)))
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        _move_file(file, target)
    for folder, _, _ in os.walk(old, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)


def _move_file(file: Path, target: Path) -> None:
    try:
        file.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with replacing(target) as temporary:
            shutil.copy2(file, temporary)
        file.unlink()
    sync_path(target.parent)


def _walk(folder: Path) -> Iterator[Path]:
    for above, _, names in os.walk(folder):
        yield from (Path(above, name) for name in names)


def _drop_incoming(gallery: Path) -> None:
    """The folder of what was half written goes when it is empty; what a server left in it, it clears itself."""
    old = gallery / INCOMING
    if old.is_dir() and not old.is_symlink() and not any(old.iterdir()):
        old.rmdir()
