"""Versions of a gallery: immutable folders, and the CURRENT pointer to the one in use; docs/formats.md lists the files.

What a version shares with the one before it is a hard link to the same file.
"""

import errno
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from index.durable import NO_LOCKS, hash_file, sync_path, try_lock, write_durably
from index.errors import GalleryDamagedError, GalleryError
from index.markers import PART_MARK, is_part
from index.text import printable_path
from index.versions.gallery_parts import describe_no_gallery, identify, mark_part, read_plan, remove_part
from index.versions.manifest import MANIFEST_NAME, Version, find_manifest

logger = logging.getLogger(__name__)

_HOLD_ATTEMPTS = 5
_VERSION_NAME = re.compile(r"\d{6,12}")
_NEXT_ID = re.compile(rb'\\?"next_id\\?": (\d{1,18})')
_CURRENT = re.compile(r"(\d{6,12}) ([0-9a-f]{64})\n")


def versions_folder(gallery: Path) -> Path:
    return gallery / "versions"


def read_current(gallery: Path) -> Version | None:
    """The current version; None where no build has finished."""
    try:
        text = (gallery / "CURRENT").read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise GalleryError(gallery, f"CURRENT cannot be read: {error}") from error
    found = _CURRENT.fullmatch(text)
    if found is None:
        detail = f"CURRENT is damaged: {text[:100]!r} names no version with its checksum"
        raise GalleryDamagedError(gallery, detail)
    return Version(versions_folder(gallery) / found[1], found[2])


def list_versions(gallery: Path) -> list[Path]:
    """All folders with a version's name, newest first, intact or not."""
    folder = versions_folder(gallery)
    names = os.listdir(folder) if folder.is_dir() else []
    return [folder / name for name in sorted(filter(_VERSION_NAME.fullmatch, names), key=int, reverse=True)]


def next_version(gallery: Path) -> str:
    numbers = [int(folder.name) for folder in list_versions(gallery)]
    return f"{max(numbers, default=0) + 1:06d}"


def highest_next_id(gallery: Path) -> int:
    """The first id that no version has used or will use, by their manifests, or else their vectors."""
    found = [1]
    for folder in list_versions(gallery):
        paths = [folder / MANIFEST_NAME, folder / PART_MARK]  # with a copy of the manifest as a JSON string
        texts = [path.read_bytes() for path in paths if path.is_file()]
        ids = [int(number) for text in texts for number in _NEXT_ID.findall(text)]
        for path in () if ids else folder.glob("ids/*.npy"):
            with suppress(OSError, ValueError, EOFError, IndexError):  # a damaged one
                ids.append(int(np.load(path, mmap_mode="r", allow_pickle=False)[-1]) + 1)
        found += ids
    return max(found)


def publish_version(gallery: Path, finished: Path, *, name: str) -> Path:
    """Make a complete folder the current version, durably; a crash leaves the old version or the new one."""
    mark_version(finished, of=identify(gallery))
    for folder, _, files in os.walk(finished):
        for file in files:
            sync_path(Path(folder, file))
        sync_path(Path(folder))
    target = versions_folder(gallery) / name
    target.parent.mkdir(exist_ok=True)
    finished.rename(target)
    sync_path(target.parent)
    try:
        set_current(gallery, target)
    except OSError:
        if read_current(gallery) != Version(target, hash_file(target / MANIFEST_NAME)):
            target.rename(finished)
        raise
    return target


def mark_version(version: Path, *, of: str) -> None:
    """Write a version's mark: the gallery's identity, and a copy of the manifest."""
    manifest = (version / MANIFEST_NAME).read_bytes()
    digest, text = hashlib.sha256(manifest).hexdigest(), manifest.decode("utf-8")
    mark_part(version, of=of, manifest_sha256=digest, manifest=text)


def set_current(gallery: Path, version: Path) -> None:
    """Point CURRENT at a complete version folder, atomically."""
    text = f"{version.name} {hash_file(version / MANIFEST_NAME)}\n"
    write_durably(gallery / "CURRENT", text.encode("ascii"))


def hold_version(version: Path) -> int:
    """Keep a version from being removed while the returned descriptor is open, if the file system has locks."""
    descriptor = os.open(version / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            os.close(descriptor)
            raise
    if not os.fstat(descriptor).st_nlink:  # removed before the lock
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(version / MANIFEST_NAME))
    return descriptor


def hold_current(path: Path) -> tuple[Version, int]:
    """A gallery's current version, and the descriptor of `hold_version`."""
    for _ in range(_HOLD_ATTEMPTS):  # a writer may remove the version at the same time
        version = find_version(path)
        try:
            return version, hold_version(version.folder)
        except FileNotFoundError:
            continue
    raise GalleryDamagedError(printable_path(str(version.folder / MANIFEST_NAME)), "cannot be read: it is missing")


@contextmanager
def holding_current(path: Path) -> Iterator[Version]:
    """A gallery's current version, which no writer removes while the block runs."""
    version, hold = hold_current(path)
    try:
        yield version
    finally:
        os.close(hold)


def find_version(path: Path) -> Version:
    if not path.is_dir():
        raise GalleryError(path, describe_no_gallery(path))
    version = read_current(path)
    if version is None:
        if read_plan(path) is not None:
            raise GalleryError(
                path, "its build has not finished; run the same build again, or `retrieval index update`"
            )
        if any((folder / MANIFEST_NAME).is_file() for folder in list_versions(path)):
            raise GalleryDamagedError(path, "CURRENT, which names the version in use, is missing")
        raise GalleryError(path, describe_no_gallery(path))
    return version


def former_version(gallery: Path, *, current: str) -> str | None:
    """The newest version before `current` with another model; None without one."""
    models = dict[str, str]()
    for folder in list_versions(gallery):
        path = folder / MANIFEST_NAME
        if int(folder.name) <= int(current) and path.is_file() and (found := find_manifest(path.read_bytes())):
            models[folder.name] = found.model_sha256
    return next((name for name, model in models.items() if model != models.get(current, model)), None)


def remove_old_versions(gallery: Path, *, current: str, previous: str | None) -> None:
    """Remove versions before the current one, but the previous (or next older), the former model's, and held ones."""
    identity = identify(gallery)
    older = [folder for folder in list_versions(gallery) if int(folder.name) < int(current)]
    own = [folder for folder in older if is_part(folder, of=identity)]
    kept = (previous or next((folder.name for folder in own), None), former_version(gallery, current=current))
    for folder in older:
        if folder.name in kept:
            continue
        try:
            if folder in own:
                _remove_unless_held(folder, of=identity)
            elif not os.listdir(folder):  # what a removal leaves that was killed at its end
                folder.rmdir()
        except OSError as error:
            shown = printable_path(folder)
            logger.warning("%s: the old version cannot be removed: %s", shown, error.strerror)


def _remove_unless_held(version: Path, *, of: str) -> None:
    manifest = version / MANIFEST_NAME
    if manifest.exists():  # a removal that was stopped may have left the folder without it
        with manifest.open("rb") as file:
            if not try_lock(file):
                return
            manifest.unlink()  # first, and under the lock: no reader opens the rest of it
    remove_part(version, of=of)
