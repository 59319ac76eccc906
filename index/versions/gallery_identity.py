"""Identity and lock of a gallery: whether a folder is one, and the lock that one writer holds."""

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

from index.durable import is_temporary, try_lock
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.limits import WRITER_WAIT_S
from index.markers import GALLERY_MARK, LOCK_NAME, is_vacant, read_mark, read_part
from index.progress import BeginStep, no_steps
from index.text import printable_path
from index.versions.gallery_parts import BUILDING, describe_no_gallery, make_mark
from index.versions.versions import list_versions

logger = logging.getLogger(__name__)

_LOOK_S = 0.1  # between two tries; `begin_step`'s progress may cancel the wait
_SILENT_S = 1.0  # before a wait is logged


@contextmanager
def lock_gallery(gallery: Path, *, wait_s: float = WRITER_WAIT_S, begin_step: BeginStep = no_steps) -> Iterator[None]:
    """Hold the gallery's lock, after at most `wait_s` seconds; the system releases it when the process ends."""
    shown = printable_path(gallery)
    try:
        descriptor = os.open(gallery / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"the gallery cannot be written: {error.strerror}", at=gallery) from error
    try:
        _take_lock(descriptor, shown, wait_s=wait_s, begin_step=begin_step)
        if not os.fstat(descriptor).st_nlink:
            raise GalleryError(shown, "another command, which failed, has removed it; run this again")
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, shown: str, *, wait_s: float, begin_step: BeginStep) -> None:
    begun, waiting, is_logged = time.monotonic(), None, False
    while True:
        try:
            if try_lock(descriptor):
                return
        except OSError as error:
            problem = f"it cannot be locked: {error.strerror}; keep galleries on a file system that has locks"
            raise GalleryError(shown, problem) from error
        waited = time.monotonic() - begun
        if waited >= wait_s:
            patience = f", and still after {wait_s:g} seconds" if wait_s > 0 else ""
            problem = f"another process is writing this gallery{patience}; wait for it or stop it, and try again"
            raise GalleryError(shown, problem)
        waiting = waiting or begin_step("Waiting for another process that writes this gallery")
        waiting(0, 0)
        if waited >= _SILENT_S and not is_logged:
            is_logged = True
            logger.warning(
                "%s: another process is writing this gallery; waiting for it, %g seconds at most", shown, wait_s
            )
        time.sleep(min(_LOOK_S, wait_s - waited))


class FolderState(Enum):
    """The state of a folder before a command writes into it."""

    MARKED = auto()  # a gallery with its mark
    DAMAGED = auto()  # parts of a gallery without its mark
    VACANT = auto()  # empty: it may become a gallery
    FOREIGN = auto()  # anything else


def recognise(folder: Path) -> FolderState:
    if read_mark(folder) is not None:
        return FolderState.MARKED
    if is_vacant(folder):
        return FolderState.VACANT
    return FolderState.DAMAGED if any(_known_identities(folder)) else FolderState.FOREIGN


def require_own_folder(folder: Path) -> FolderState:
    """Check that a folder is a gallery, which may be damaged; its state."""
    if not folder.is_dir():
        raise GalleryError(folder, describe_no_gallery(folder))
    try:
        state = recognise(folder)
    except OSError as error:
        raise InputError(f"the gallery cannot be read: {error.strerror}", at=folder) from error
    if state in (FolderState.VACANT, FolderState.FOREIGN):
        raise GalleryError(folder, describe_no_gallery(folder))
    return state


def find_damage(folder: Path) -> GalleryError:
    mark = folder / GALLERY_MARK
    problem = "damaged: no mark of a gallery" if os.path.lexists(mark) else "the mark of the gallery is missing"
    return GalleryDamagedError(mark, problem)


def claim_gallery(folder: Path) -> str:
    """The identity of a gallery, under its lock; a damaged or missing mark is restored from its parts."""
    identity = read_mark(folder)
    if identity is not None:
        for entry in list(os.scandir(folder)):  # leftovers of killed programs
            if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
        return identity
    identity = next(_known_identities(folder), None) or secrets.token_hex(16)
    _move_aside(folder / GALLERY_MARK)
    return make_mark(folder, identity=identity)


def _move_aside(mark: Path) -> None:
    """Rename a damaged or foreign file with the mark's name."""
    if os.path.lexists(mark):
        taken = mark.with_name(mark.name + ".damaged")
        number = 1
        while os.path.lexists(taken):
            number += 1
            taken = mark.with_name(f"{mark.name}.damaged-{number}")
        mark.rename(taken)


def _known_identities(folder: Path) -> Iterator[str]:
    for part in (*list_versions(folder), folder / BUILDING):
        values = read_part(part)
        if values is not None and not part.is_symlink():
            yield str(values["gallery"])
