"""Spool of remote and compressed archives, as plain archives in the user's cache folder.

An archive is fetched and unpacked once, then listed and read from there. Where the spool is too large, the least
recently used archives are removed; reading one again fetches it again. The folder may be deleted at any time.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from index.durable import is_temporary, replacing
from index.errors import ImageError, InputError
from index.images.image_files import modified_ns, open_file, reason_of
from index.paths import user_cache
from index.sources.image_cells import unpack_cells
from index.sources.unpacking import DamagedError, unpack
from index.text import printable_path

MAX_SPOOLED_BYTES = 20 << 30
_FOLDER, _PROBLEM = "shards", ".problem"
_PART_BYTES = 1 << 20
_FORGOTTEN_NS = 86_400 * 10**9
_LISTS = (".csv", ".parquet", ".tsv", ".jsonl", ".txt", ".lst")  # remote lists are spooled too
_one_at_a_time = threading.Lock()


Spooled = tuple[Path, str | None]
"""A plain archive; of a damaged one the intact beginning, and the problem."""


def spool_local(file: Path) -> Spooled:
    """Unpack a local compressed archive, or the images in a Parquet file, to the spool."""
    with open_file(file) as raw:

        def read_parts() -> Iterator[bytes]:
            try:
                yield from iter(lambda: raw.read(_PART_BYTES) or b"", b"")
            except OSError as error:
                raise ImageError(path=file, reason=reason_of(error), detail=str(error.strerror)) from error

        status = os.fstat(raw.fileno())
        key = f"{os.path.realpath(file)}\n{status.st_size}\n{modified_ns(status)}"
        if file.suffix.lower() == ".parquet":
            return spool(key, name=f"{file.name}.tar", fetch=lambda: unpack_cells(file))
        return spool(key, name=file.name, fetch=read_parts)


def find_spooled(key: str, *, name: str) -> Spooled | None:
    """An archive of the spool, marked as used now."""
    file = _name_file(key, name)
    with suppress(OSError):
        os.utime(file)
        problem = file.with_suffix(_PROBLEM)
        return file, problem.read_text(encoding="utf-8") if problem.exists() else None
    return None


def spool(key: str, *, name: str, fetch: Callable[[], Iterator[bytes]]) -> Spooled:
    """An archive of the spool, fetched and unpacked if needed; one at a time.

    `key` is unique to the archive and its state; the suffix of `name` gives the format.
    """
    if (found := find_spooled(key, name=name)) is not None:
        return found
    with _one_at_a_time:
        if (found := find_spooled(key, name=name)) is not None:
            return found
        file = _name_file(key, name)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            problem = file.with_suffix(_PROBLEM)
            problem.unlink(missing_ok=True)
            with replacing(file) as temporary:
                damage = _write(temporary, unpack(fetch()), name=name)
                if damage is not None:
                    problem.write_text(damage, encoding="utf-8")
        except OSError as error:
            advice = (
                f"the archive {printable_path(name)} cannot be unpacked there: {error.strerror}; make room, or set "
                "XDG_CACHE_HOME to a folder with more"
            )
            raise InputError(advice, at=file.parent) from error
        _prune(file)
        return file, damage


def _write(file: Path, parts: Iterator[bytes], *, name: str) -> str | None:
    """Write the parts; the damage that ended them, if any."""
    written = 0
    with file.open("wb") as out:
        try:
            for part in parts:
                written += out.write(part)
                if written > MAX_SPOOLED_BYTES:
                    raise ImageError(name, "too-costly", f"it unpacks to more than {MAX_SPOOLED_BYTES} bytes")
        except DamagedError as error:
            return str(error)
    return None


def _name_file(key: str, name: str) -> Path:
    own = os.path.splitext(name.lower())[1]
    ending = own if own in (".zip", *_LISTS) else ".tar"
    return user_cache() / _FOLDER / (hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32] + ending)


def _prune(kept: Path) -> None:
    """Remove least recently used archives while the spool is too large; open files can be read on."""
    files = []
    for file in kept.parent.iterdir():
        with suppress(OSError):
            status = file.stat()
            files.append((status.st_mtime_ns, status.st_size, file))
    total = sum(size for _, size, _ in files)
    for changed_ns, _, file in files:
        if is_temporary(file.name) and time.time_ns() - changed_ns > _FORGOTTEN_NS:  # of one that was killed
            file.unlink(missing_ok=True)
    for _, size, file in sorted(files):
        if total <= MAX_SPOOLED_BYTES:
            return
        if file.stem != kept.stem and file.suffix in (".tar", ".zip", *_LISTS):
            with suppress(OSError):
                file.unlink()
                file.with_suffix(_PROBLEM).unlink(missing_ok=True)
            total -= size
