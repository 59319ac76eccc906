"""The files of a gallery: immutable version folders, the CURRENT pointer, the lock, and durable writes.

GALLERY/CURRENT            name of the version in use and SHA-256 of its manifest; replaced in one step
GALLERY/versions/000001/   manifest.json, model.onnx, catalog.sqlite, vectors/, ids/, deleted.npy,
                           and of an index that is no plain scan index.faiss and held_out.npy
GALLERY/building/          work in progress, from which a stopped command continues
GALLERY/.lock              held by the one process that writes

What a version shares with the one before it is a hard link to the same file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from index.errors import GalleryDamagedError, GalleryError, InputError
from index.images import printable_path
from index.model_file import hash_file
from index.preprocess import PreprocessConfig

logger = logging.getLogger(__name__)

FORMAT_VERSION = 3
METRIC = "inner-product"
MANIFEST_NAME = "manifest.json"
MODEL_NAME = "model.onnx"
CATALOG_NAME = "catalog.sqlite"
INDEX_NAME = "index.faiss"
DELETED_NAME = "deleted.npy"
HELD_OUT_NAME = "held_out.npy"
_HOLD_ATTEMPTS = 5
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_VERSION_NAME = re.compile(r"\d{6,12}")
_CURRENT = re.compile(r"(\d{6,12}) ([0-9a-f]{64})\n")
_KINDS = {
    "model_sha256": str,
    "preprocessing": dict,
    "embedding_dim": int,
    "counts": dict,
    "next_id": int,
    "index": dict,
    "files": dict,
}
_OWN_NAMES = {"CURRENT", "CURRENT.tmp", "versions", "building", ".lock"} | {
    "added", "incoming", "insights", "review.sqlite", "review.sqlite-journal",  # a server's
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says of one version.

    `counts` has `found`, `indexed`, `duplicate`, `skipped`, `skipped_by_reason`, and `deleted`, the stored vectors that
    are no members any more; `index` what `index.vector_index.build_index` says of the index; `files` the size and
    SHA-256 of every other file of the version, by relative path.
    """

    model_sha256: str
    preprocessing: PreprocessConfig
    embedding_dim: int
    counts: dict[str, Any]
    next_id: int
    index: dict[str, Any]
    files: dict[str, dict[str, Any]]
    metric: str = METRIC
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps({**asdict(self), "preprocessing": self.preprocessing.to_json()}, indent=2) + "\n"

    @classmethod
    def read(cls, version: Version) -> Manifest:
        """Read and check the manifest of a version.

        Raises:
            GalleryError: it is missing, damaged, or of another format version.
        """
        path = version.folder / MANIFEST_NAME
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != version.manifest_sha256:
                raise ValueError("its SHA-256 is not the one that CURRENT names")
            return cls._parse(json.loads(content))
        except OSError as error:
            raise GalleryDamagedError(printable_path(str(path)), f"cannot be read: {error.strerror}") from error
        except _OtherFormatError as error:
            raise GalleryError(printable_path(str(path)), str(error)) from error
        except (ValueError, InputError) as error:
            raise GalleryDamagedError(printable_path(str(path)), f"damaged: {error}") from error

    @classmethod
    def _parse(cls, values: Any) -> Manifest:
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, got {type(values).__name__}")
        found = values.get("format_version")
        if found != FORMAT_VERSION:
            raise _OtherFormatError(
                f"format version {found!r}, this program reads {FORMAT_VERSION}; build the gallery again into another "
                "folder, or use the program that made it"
            )
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise ValueError(f"expected exactly the keys {sorted(known)}, got {sorted(values)}")
        for name, kind in _KINDS.items():
            if not isinstance(values[name], kind):
                raise ValueError(f"{name} must be {kind.__name__}, got {values[name]!r}")
        if values["metric"] != METRIC:
            raise ValueError(f"metric must be {METRIC!r}, got {values['metric']!r}")
        return cls(**{**values, "preprocessing": PreprocessConfig.from_json(values["preprocessing"])})


class _OtherFormatError(Exception):
    """A manifest of another version of this program."""


def describe_file(path: Path) -> dict[str, Any]:
    """What a manifest says of a file: its size and SHA-256."""
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def check_file(version: Path, name: str, manifest: Manifest, *, contents: bool) -> None:
    """Compare a file of a version with the manifest: its size, and with `contents` its SHA-256.

    Raises:
        GalleryError: it is missing or differs.
    """
    path, expected = version / name, manifest.files.get(name)
    shown = printable_path(str(path))
    if expected is None:
        raise GalleryDamagedError(shown, "the manifest does not list this file")
    try:
        size = path.stat().st_size
        digest = hash_file(path) if contents and size == expected.get("bytes") else None
    except OSError as error:
        raise GalleryDamagedError(shown, f"cannot be read: {error.strerror}") from error
    if size != expected.get("bytes"):
        raise GalleryDamagedError(shown, f"damaged: {size} bytes, expected {expected.get('bytes')}")
    if contents and digest != expected.get("sha256"):
        raise GalleryDamagedError(shown, "damaged: its SHA-256 is not the one in the manifest")


def versions_folder(gallery: Path) -> Path:
    """Where a gallery keeps its versions."""
    return gallery / "versions"


@dataclass(frozen=True, slots=True)
class Version:
    """A version folder and the SHA-256 of its manifest, from which everything else in it can be checked."""

    folder: Path
    manifest_sha256: str

    @property
    def name(self) -> str:
        """Its number, as text of a fixed width."""
        return self.folder.name


def read_current(gallery: Path) -> Version | None:
    """The version in use; None where no build has finished.

    Raises:
        GalleryError: CURRENT is damaged.
    """
    try:
        text = (gallery / "CURRENT").read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise GalleryError(printable_path(str(gallery)), f"CURRENT cannot be read: {error}") from error
    found = _CURRENT.fullmatch(text)
    if found is None:
        detail = f"CURRENT is damaged: {text[:100]!r} names no version with its checksum"
        raise GalleryDamagedError(printable_path(str(gallery)), detail)
    return Version(versions_folder(gallery) / found[1], found[2])


def looks_like_gallery(folder: Path) -> bool:
    """Whether a folder is a gallery, finished or not; an empty folder counts as one to be."""
    names = set(os.listdir(folder))
    return "CURRENT" in names or names <= _OWN_NAMES


def latest_version(gallery: Path) -> str | None:
    """The newest complete version folder, which a build stopped at its last step may have left unpublished."""
    folder = versions_folder(gallery)
    names = os.listdir(folder) if folder.is_dir() else []
    return max((name for name in names if _VERSION_NAME.fullmatch(name)), key=int, default=None)


def next_version(gallery: Path) -> str:
    """The name of the version to be made."""
    return f"{int(latest_version(gallery) or 0) + 1:06d}"


def publish_version(gallery: Path, finished: Path, *, name: str) -> Path:
    """Make a complete folder the version in use, durably, and say where it is now.

    A crash leaves the old version or the new one.
    """
    for folder, _, files in os.walk(finished):
        for file in files:
            sync_path(Path(folder, file))
        sync_path(Path(folder))
    target = versions_folder(gallery) / name
    target.parent.mkdir(exist_ok=True)
    finished.rename(target)
    sync_path(target.parent)
    set_current(gallery, target)
    return target


def set_current(gallery: Path, version: Path) -> None:
    """Point CURRENT at a complete version folder in one step."""
    text = f"{version.name} {hash_file(version / MANIFEST_NAME)}\n"
    write_durably(gallery / "CURRENT", text.encode("ascii"))


def link_file(source: Path, target: Path) -> None:
    """Let a finished file, which nobody changes, stand in another folder too; a copy where links are not possible."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            raise
        shutil.copyfile(source, target)


def hold_version(version: Path) -> int:
    """Keep a version from being removed while the descriptor given back is open, which a process's end closes.

    Where the file system has no locks nothing is held, and the version is safe until the next but one is made.

    Raises:
        FileNotFoundError: it was removed already.
    """
    descriptor = os.open(version / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    if not os.fstat(descriptor).st_nlink:  # removed while we waited for the lock
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(version / MANIFEST_NAME))
    return descriptor


def hold_current(path: Path) -> tuple[Version, int]:
    """A gallery's current version, and the descriptor that keeps it from being removed while it is open.

    Raises:
        GalleryError: there is none, or no gallery.
    """
    for _ in range(_HOLD_ATTEMPTS):  # a writer may remove the version between the two steps
        version = find_version(path)
        try:
            return version, hold_version(version.folder)
        except FileNotFoundError:
            continue
    raise GalleryDamagedError(printable_path(str(version.folder / MANIFEST_NAME)), "cannot be read: it is missing")


def find_version(path: Path) -> Version:
    """A gallery's current version.

    Raises:
        GalleryError: there is none, or no gallery.
    """
    shown = printable_path(str(path))
    if not path.is_dir():
        raise GalleryError(shown, "no such gallery; make one with `retrieval index build MODEL SOURCE --out`")
    version = read_current(path)
    if version is None:
        if (path / "building").exists():
            raise GalleryError(
                shown, "its build has not finished; run the same build again, or `retrieval index update`"
            )
        raise GalleryError(shown, "the folder is no gallery; make one with `retrieval index build`")
    return version


def remove_old_versions(gallery: Path, *, current: str, previous: str | None) -> None:
    """Remove every version older than the current one, but the previous and those that readers hold.

    Where `previous` is None it is the next older one. A version that cannot be removed is left to the next writer.
    """
    names = [name for name in os.listdir(versions_folder(gallery)) if _VERSION_NAME.fullmatch(name)]
    older = sorted((name for name in names if int(name) < int(current)), key=int)
    kept = previous or next(reversed(older), None)
    for name in older:
        if name == kept:
            continue
        try:
            _remove_unless_held(versions_folder(gallery) / name)
        except OSError as error:
            shown = printable_path(str(versions_folder(gallery) / name))
            logger.warning("%s: the old version cannot be removed: %s", shown, error.strerror)


def _remove_unless_held(version: Path) -> None:
    manifest = version / MANIFEST_NAME
    if manifest.exists():  # a removal that was stopped may have left the folder without it
        with manifest.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            manifest.unlink()  # first, and under the lock: nobody opens the rest of it
    shutil.rmtree(version)


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


def read_json(path: Path) -> Mapping[str, Any] | None:
    """A JSON object from a file; None where the file is missing or no JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None
