"""Files that a crash leaves whole: the only write, sync and rename, and links in the place of copies."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write a small file so that a crash leaves the old content or the new, never a part."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def remove_durably(path: Path) -> None:
    """Remove a file if it is there, so that it stays removed whatever happens to the machine."""
    if path.exists():
        path.unlink()
        sync_path(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write; at the end it is synced and takes the place of `path` in one step.

    After an error nothing is left of it.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        sync_path(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Let what was written to a file, or the names in a folder, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_file(source: Path, target: Path) -> None:
    """Let a finished file, which nobody changes, stand in another folder too; a copy where links are not possible."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            raise
        shutil.copyfile(source, target)
