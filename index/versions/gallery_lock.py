"""The lock of a gallery, which one writer holds while the others wait for it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from index.durable import try_lock
from index.errors import GalleryError, InputError
from index.limits import LOCK_WAIT_S
from index.marks import LOCK_NAME
from index.progress import BeginStep, no_steps
from index.text import printable_path

logger = logging.getLogger(__name__)

_LOOK_S = 0.1  # between two tries: a wait can be called off by whoever is told of it
_SILENT_S = 1.0  # that a wait is told to nobody but the caller


@contextmanager
def lock_gallery(
    gallery: Path, *, wait_s: float = LOCK_WAIT_S, begin_step: BeginStep = no_steps
) -> Iterator[None]:
    """Hold the gallery's lock, once no other process does; the system releases it when the process ends, however.

    Args:
        gallery: the folder.
        wait_s: seconds to wait for another process.
        begin_step: called when a wait begins, and what it gives again and again while it lasts.

    Raises:
        InputError: the folder may not be written.
        GalleryError: another process still writes this gallery.
    """
    shown = printable_path(str(gallery))
    descriptor = _open(gallery, shown)
    try:
        if not _take(descriptor, shown):
            _wait(descriptor, shown, wait_s=wait_s, begin_step=begin_step)
            if not os.fstat(descriptor).st_nlink:
                raise GalleryError(shown, "whoever was making it was refused, and took it away; run this again")
        yield
    finally:
        os.close(descriptor)


def _open(gallery: Path, shown: str) -> int:
    try:
        return os.open(gallery / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{shown}: the gallery cannot be written: {error.strerror}") from error


def _take(descriptor: int, shown: str) -> bool:
    try:
        return try_lock(descriptor)
    except OSError as error:
        problem = f"it cannot be locked: {error.strerror}; keep galleries on a file system that has locks"
        raise GalleryError(shown, problem) from error


def _wait(descriptor: int, shown: str, *, wait_s: float, begin_step: BeginStep) -> None:
    begun, is_told = time.monotonic(), False
    waiting = begin_step("Waiting for another process that writes this gallery") if wait_s > 0 else None
    while (waited := time.monotonic() - begun) < wait_s:
        if waiting is not None:
            waiting(0, 0)
        if waited >= _SILENT_S and not is_told:
            logger.warning(
                "%s: another process is writing this gallery; waiting for it, %g seconds at most", shown, wait_s
            )
            is_told = True
        time.sleep(min(_LOOK_S, wait_s - waited))
        if _take(descriptor, shown):
            return
    patience = f", and still after {wait_s:g} seconds" if wait_s > 0 else ""
    raise GalleryError(
        shown, f"another process is writing this gallery{patience}; wait for it or stop it, and try again"
    )
