"""Folder of a published gallery: files under names of their content, and an index that is replaced last."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from index.durable import is_temporary, make_temporary, open_for_lock, try_lock, write_durably
from index.errors import InputError
from index.text import printable_path

INDEX = "index.html"
GENERATOR = "retrieval publish"
_OWN = re.compile(r"data|images|page-[0-9a-f]{16}")  # subfolders, in which every unused file is removed
_UNFINISHED = f'<!doctype html><meta name="generator" content="{GENERATOR}"><title>Not published yet</title>\n'
_START_BYTES = 2000  # of the index, which hold the generator


class SiteFolder:
    """The files of a site, of which only missing ones are written; safe among threads.

    Until `finish` replaces the index, a site that was there stays whole.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self.sizes: dict[str, int] = {}
        self.written = self.removed = 0

    def put_hashed(self, name: str, content: bytes, *, suffix: str) -> str:
        """Write a file below `data` under the hash of its content, and give its path."""
        path = f"data/{name}-{short_hash(content)}{suffix}"
        self.keep(path, lambda: content)
        return path

    def keep(self, path: str, make: Callable[[], bytes]) -> None:
        """Keep a file that is there, or else write what `make` gives."""
        target = self._out / path
        try:
            size = target.stat().st_size  # 0 after a power cut
        except FileNotFoundError:
            size = 0
        if not size:
            content = make()
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = make_temporary(target.parent)
            try:
                temporary.write_bytes(content)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
            size = len(content)
            self.written += 1
        self.sizes[path] = size

    def finish(self, index: bytes) -> None:
        """Replace the index, after all other files are on the disk; then remove those that it does not name."""
        os.sync()
        self.sizes[INDEX] = len(index)
        path = self._out / INDEX
        if not path.is_file() or path.read_bytes() != index:
            write_durably(path, index)
            self.written += 1
        for leftover in [one for one in self._out.iterdir() if is_temporary(one.name)]:
            leftover.unlink()
        for folder in [one for one in self._out.iterdir() if _OWN.fullmatch(one.name) and not one.is_symlink()]:
            for parent, _, names in os.walk(folder, topdown=False):
                unused = [Path(parent, name) for name in names if self._name(Path(parent, name)) not in self.sizes]
                for file in unused:
                    file.unlink()
                self.removed += len(unused)
                if not os.listdir(parent):
                    os.rmdir(parent)

    def _name(self, file: Path) -> str:
        return file.relative_to(self._out).as_posix()


@contextmanager
def open_site(out: Path) -> Iterator[SiteFolder]:
    """The locked folder of a site, a new one or one that was published before."""
    try:
        out.mkdir(exist_ok=True)
        lock = open_for_lock(out)
        try:
            if not try_lock(lock):
                raise InputError("another command is publishing to it; wait until it is done", at=out)
            if not any(out.iterdir()):
                write_durably(out / INDEX, _UNFINISHED.encode())  # it marks the folder
            elif not is_site(out):
                raise InputError("expected a new folder, or a published gallery; give another --out", at=out)
            yield SiteFolder(out)
        finally:
            os.close(lock)
    except OSError as error:
        problem = f"{printable_path(out)}: cannot be written: {error.strerror or error}"
        raise InputError(f"{problem}; a site that was there is unchanged") from error


def is_site(out: Path) -> bool:
    """Whether a folder is a published gallery, or the beginning of one."""
    try:
        with (out / INDEX).open("rb") as file:
            return f'content="{GENERATOR}"'.encode() in file.read(_START_BYTES)
    except FileNotFoundError:
        return False


def short_hash(content: bytes) -> str:
    """The first 64 bits of the SHA-256 as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()[:16]
