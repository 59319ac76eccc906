"""The files of a gallery: immutable version folders, the CURRENT pointer, the lock, and durable writes.

GALLERY/CURRENT            name of the version in use; replaced in one step
GALLERY/versions/000001/   manifest.json, model.onnx, catalog.sqlite, vectors/, ids/, index.faiss
GALLERY/building/          work in progress, from which a stopped build continues
GALLERY/.lock              held by the one process that builds
"""

from __future__ import annotations

import fcntl
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

FORMAT_VERSION = 1
METRIC = "inner-product"
MANIFEST_NAME = "manifest.json"
MODEL_NAME = "model.onnx"
CATALOG_NAME = "catalog.sqlite"
INDEX_NAME = "index.faiss"
_VERSION_NAME = re.compile(r"\d{6,12}")
_KINDS = {
    "model_sha256": str,
    "preprocessing": dict,
    "embedding_dim": int,
    "counts": dict,
    "next_id": int,
    "index": dict,
    "source_folder": str,
    "files": dict,
}
_OWN_NAMES = {"CURRENT", "CURRENT.tmp", "versions", "building", ".lock"}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says of one version.

    `counts` has `indexed`, `skipped` and `skipped_by_reason`; `index` the type of the faiss index, its parameters
    and what was measured; `files` the size and SHA-256 of every other file of the version, by relative path.
    """

    model_sha256: str
    preprocessing: PreprocessConfig
    embedding_dim: int
    counts: dict[str, Any]
    next_id: int
    index: dict[str, Any]
    source_folder: str
    labels_source: str
    files: dict[str, dict[str, Any]]
    metric: str = METRIC
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps({**asdict(self), "preprocessing": self.preprocessing.to_json()}, indent=2) + "\n"

    @classmethod
    def read(cls, version: Path) -> Manifest:
        """Read and check the manifest of a version folder.

        Raises:
            GalleryError: it is missing, damaged, or of another format version.
        """
        path = version / MANIFEST_NAME
        try:
            return cls._parse(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise GalleryDamagedError(printable_path(str(path)), f"cannot be read: {error.strerror}") from error
        except (ValueError, InputError) as error:
            raise GalleryDamagedError(printable_path(str(path)), f"damaged: {error}") from error

    @classmethod
    def _parse(cls, values: Any) -> Manifest:
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, got {type(values).__name__}")
        found = values.get("format_version")
        if found != FORMAT_VERSION:
            raise ValueError(f"format version {found!r}, this program reads {FORMAT_VERSION}")
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise ValueError(f"expected exactly the keys {sorted(known)}, got {sorted(values)}")
        for name, kind in _KINDS.items():
            if not isinstance(values[name], kind):
                raise ValueError(f"{name} must be {kind.__name__}, got {values[name]!r}")
        if values["metric"] != METRIC:
            raise ValueError(f"metric must be {METRIC!r}, got {values['metric']!r}")
        return cls(**{**values, "preprocessing": PreprocessConfig.from_json(values["preprocessing"])})


def describe_files(version: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file of a version but its manifest, by '/'-separated relative path."""
    paths = sorted(path for path in version.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    return {
        path.relative_to(version).as_posix(): {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in paths
    }


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


def read_current(gallery: Path) -> str | None:
    """Name of the version in use; None where no build has finished.

    Raises:
        GalleryError: CURRENT is damaged.
    """
    try:
        name = (gallery / "CURRENT").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise GalleryError(printable_path(str(gallery)), f"CURRENT cannot be read: {error}") from error
    if not _VERSION_NAME.fullmatch(name):
        raise GalleryDamagedError(printable_path(str(gallery)), f"CURRENT is damaged: {name!r} names no version")
    return name


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


def publish_version(gallery: Path, finished: Path, *, name: str) -> None:
    """Make a complete folder the version in use, durably; a crash leaves the old version or the new one."""
    for folder, _, files in os.walk(finished):
        for file in files:
            _sync(Path(folder, file))
        _sync(Path(folder))
    target = versions_folder(gallery) / name
    target.parent.mkdir(exist_ok=True)
    finished.rename(target)
    _sync(target.parent)
    set_current(gallery, name)


def set_current(gallery: Path, name: str) -> None:
    """Point CURRENT at a version in one step."""
    write_durably(gallery / "CURRENT", f"{name}\n".encode("ascii"))


def remove_old_versions(gallery: Path, *, current: str, previous: str | None) -> None:
    """Remove every version older than the current one but the previous, which readers may have open.

    Where `previous` is None it is the next older one. A version that cannot be removed is left to the next build.
    """
    names = [name for name in os.listdir(versions_folder(gallery)) if _VERSION_NAME.fullmatch(name)]
    older = sorted((name for name in names if int(name) < int(current)), key=int)
    kept = previous or next(reversed(older), None)
    for name in older:
        if name == kept:
            continue
        try:
            shutil.rmtree(versions_folder(gallery) / name)
        except OSError as error:
            shown = printable_path(str(versions_folder(gallery) / name))
            logger.warning("%s: the old version cannot be removed: %s", shown, error.strerror)


def write_durably(path: Path, content: bytes) -> None:
    """Write a small file so that a crash leaves the old content or the new, never a part."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write; at the end it is synced and takes the place of `path` in one step."""
    temporary = path.with_name(path.name + ".tmp")
    yield temporary
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
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
        GalleryError: another process builds this gallery.
    """
    shown = printable_path(str(gallery))
    try:
        descriptor = os.open(gallery / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{shown}: the gallery cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise GalleryError(shown, "another process is building this gallery; wait for it or stop it") from error
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
