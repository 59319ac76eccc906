"""Atomic, durable file writes (write, sync, rename), links instead of copies, locks, and the limit on open files.

Unfinished files are named `.retrieval-0123456789abcdef.tmp`, which never collides with foreign files.
"""

import csv
import errno
import fcntl
import hashlib
import os
import re
import resource
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from index.errors import InputError

_TEMPORARY = re.compile(r"\.retrieval-[0-9a-f]{16}\.tmp")
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Error numbers of a file system without locks."""
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""Error numbers where a file cannot be hard-linked."""


def is_temporary(name: str) -> bool:
    """Whether a name is that of an unfinished file."""
    return _TEMPORARY.fullmatch(name) is not None


def make_temporary(folder: Path, *, mode: int = 0o666) -> Path:
    """Create an empty file with a unique temporary name; `mode` is subject to the umask."""
    path = folder / f".retrieval-{secrets.token_hex(8)}.tmp"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    return path


def write_durably(path: Path, content: bytes) -> None:
    """Write a small file atomically and durably."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def create_durably(path: Path, content: bytes) -> bool:
    """Write a file like `write_durably`, unless it exists; returns whether it was written."""
    try:
        with replacing(path, only_new=True) as temporary:
            temporary.write_bytes(content)
    except FileExistsError:
        return False
    except FileNotFoundError:  # a faster writer has removed the temporary file
        if not os.path.lexists(path):
            raise
        return False
    return True


def take_free_name(temporary: Path, path: Path) -> bool:
    """Rename a finished file unless the name exists; whether it was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(path):
            return False
        temporary.rename(path)
    return True


def remove_durably(path: Path) -> None:
    """Remove a file durably, if it exists."""
    if path.exists():
        path.unlink()
        sync_path(path.parent)


@contextmanager
def replacing(path: Path, *, only_new: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """A temporary path to write, which is synced and replaces `path` atomically at the end; removed after an error."""
    temporary = make_temporary(path.parent, mode=mode)
    try:
        yield temporary
        sync_path(temporary)
        if not only_new:
            temporary.replace(path)
        elif not take_free_name(temporary, path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        sync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def link_file(source: Path, target: Path) -> None:
    """Hard-link an immutable file; copy it where links are not possible."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(source, target)


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_own_files(folder: Path, names: Sequence[str], *, header: Sequence[str]) -> None:
    """Check that files may be written: existing ones only where the first is a CSV table with the command's header."""
    taken = [name for name in names if os.path.lexists(folder / name)]
    start, is_own = ",".join(header).encode(), False
    if (folder / names[0]).is_file():
        with suppress(OSError), (folder / names[0]).open("rb") as file:
            is_own = file.read(len(start)) == start
    if taken and not is_own:
        problem = "exists already, and is not what this command writes there; move it away, or give another --out"
        raise InputError(problem, at=folder / taken[0])


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Replace a CSV file atomically; undecodable bytes of paths stay unchanged."""
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


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
