"""Operating system: file locks, synced folders and limits of processes, where Linux, macOS and Windows differ.

Nothing here was ever run on Windows; a test runs the rest of the program without what Windows lacks.
"""

import errno
import logging
import os
import shutil
import sys
import threading
from functools import cache
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)
O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
O_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
O_BINARY: int = getattr(os, "O_BINARY", 0)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Error numbers of a file system without locks."""
_HELD = 33  # Windows' ERROR_LOCK_VIOLATION


def try_lock(file: int | IO[Any]) -> bool:
    """Try to take the exclusive lock of an open file without waiting; whether it succeeded."""
    return _lock(file, wait=False)


def wait_for_lock(file: int | IO[Any]) -> None:
    """Take the exclusive lock of an open file."""
    _lock(file, wait=True)


def share_lock(descriptor: int) -> None:
    """Take a shared lock of an open file, which keeps others from the exclusive one."""
    _lock(descriptor, wait=True, shared=True)


def _lock(file: int | IO[Any], *, wait: bool, shared: bool = False) -> bool:
    descriptor = file if isinstance(file, int) else file.fileno()
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
    elif sys.platform == "win32":
        return _lock_on_windows(descriptor, wait=wait, shared=shared)
    return True


def _lock_on_windows(descriptor: int, *, wait: bool, shared: bool) -> bool:
    """LockFileEx of one byte far behind any content: Windows refuses reads of locked bytes."""
    import ctypes
    import msvcrt

    class Overlapped(ctypes.Structure):
        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", ctypes.c_uint32),
            ("offset_high", ctypes.c_uint32),
            ("event", ctypes.c_void_p),
        )

    place = Overlapped(None, None, 0, 0x7FFFFFFF, None)
    flags = (0 if wait else 1) | (0 if shared else 2)
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
    handle = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor))  # type: ignore[attr-defined,unused-ignore]
    if kernel.LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(place)):
        return True
    code = ctypes.get_last_error()  # type: ignore[attr-defined,unused-ignore]
    if code == _HELD:
        return False
    raise ctypes.WinError(code)  # type: ignore[attr-defined,unused-ignore]


def sync_path(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk; Windows has no such thing for folders."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, (os.O_RDWR if sys.platform == "win32" else os.O_RDONLY) | O_BINARY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all() -> None:
    """Flush all written files to the disk; Windows does so only file by file, and here not at all."""
    if hasattr(os, "sync"):
        os.sync()


@cache  # so that it warns once
def can_limit_processes() -> bool:
    """Whether a process can be started that is ended beyond its memory or processor time; a warning where not."""
    if resource is None:
        logger.warning("this system limits no process: a hostile image may take all memory, or hang the program")
    return resource is not None


def allow_open_files(wanted: int) -> None:
    """Raise the limit on open files, as far as the machine allows."""
    if resource is None:
        return
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != files < wanted:
        files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


LOCK_NAME = ".retrieval-lock"


def open_for_lock(folder: Path) -> int:
    """A descriptor to lock a folder by; on Windows, where folders cannot be opened, of a file in it."""
    if sys.platform == "win32":
        return os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    return os.open(folder, os.O_RDONLY | O_CLOEXEC)


def remove_locked(folder: Path, lock: int) -> None:
    """Remove a folder, and close the lock of it that is held; on Windows, which removes no open file, before."""
    if sys.platform == "win32":
        os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)
    if sys.platform != "win32":
        os.close(lock)


_seeking = threading.Lock()


def pread(descriptor: int, size: int, offset: int) -> bytes:
    """As `os.pread`, which Windows lacks."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    with _seeking:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, size)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)
