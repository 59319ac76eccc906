"""File locks, files synced to the disk, and the limit on open files."""

import errno
import fcntl
import os
import resource
from pathlib import Path
from typing import IO, Any

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Error numbers of a file system without locks."""


def try_lock(file: int | IO[Any]) -> bool:
    """Try to take the exclusive lock of an open file without waiting; whether it succeeded."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_for_lock(folder: Path) -> int:
    """A descriptor to lock a folder by."""
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)


def sync_path(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def allow_open_files(wanted: int) -> None:
    """Raise the limit on open files, as far as the machine allows."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != files < wanted:
        files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
