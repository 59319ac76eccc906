"""Locks on open files and folders, which the system releases when a process ends, however it does."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def try_lock(file: int | IO[Any]) -> bool:
    """Whether the lock of an open file, or of a descriptor, is now this process's alone; it does not wait.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
