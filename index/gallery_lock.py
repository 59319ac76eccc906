"""The lock of a gallery, which one writer holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from index.errors import GalleryError, InputError
from index.images import printable_path


@contextmanager
def lock_gallery(gallery: Path) -> Iterator[None]:
    """Hold the gallery's lock; the system releases it when the process ends, however it ends.

    Raises:
        InputError: the folder may not be written.
        GalleryError: another process writes this gallery.
    """
    shown = printable_path(str(gallery))
    try:
        descriptor = os.open(gallery / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{shown}: the gallery cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        problem = f"it cannot be locked: {error.strerror}; keep galleries on a file system that has locks"
        if isinstance(error, BlockingIOError):
            problem = "another process is writing this gallery; wait for it or stop it"
        raise GalleryError(shown, problem) from error
    try:
        yield
    finally:
        os.close(descriptor)
