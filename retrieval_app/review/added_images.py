"""Images that were sent to a gallery: kept below its own folder, `added`, which is one of its sources.

GALLERY/added/SHA256.jpg          an image without a label, named by its bytes and the format they have
GALLERY/added/LABEL/SHA256.png    one with a label, which is what the first folder of a source stands for
GALLERY/incoming/                 what is being written; whole files are moved out of it
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from index.catalog import Catalog, CatalogRow, read_catalog
from index.durable import sync_path, write_durably
from index.errors import InputError
from index.images import FORMATS, decode_image, printable_path, walk_folder
from index.manifest import CATALOG_NAME
from index.sources import Source
from index.versions import hold_current
from retrieval_app.review.decisions import check_label

ADDED = "added"
INCOMING = "incoming"
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}  # of others, their own name
_MAX_NAME_BYTES = 255
_STALE_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class AddedImage:
    """A file below `added`, and the label that its folder gives it."""

    path: Path
    label: str | None


def check_folder_label(text: str) -> str:
    """A label that an added image can have: the name of its folder.

    Raises:
        InputError: it is no plain name of a folder.
    """
    label = check_label(text)
    shown = printable_path(label)
    if label in (".", "..") or "/" in label or "\\" in label or label.startswith("."):
        raise InputError(
            f"the label {shown} is no plain name of a folder: leave / and \\ and a dot at the start out"
        )
    if len(label.encode()) > _MAX_NAME_BYTES:
        raise InputError(
            f"the label {shown} has more than {_MAX_NAME_BYTES} bytes, no folder can have such a name"
        )
    return label


def store_image(
    gallery: Path, data: bytes, *, name: str, label: str | None, max_pixels: int, max_bytes: int
) -> AddedImage:
    """Decode an image wholly, then keep its bytes durably; the same bytes and label are kept once.

    Raises:
        ImageError: it cannot be decoded, or has too many pixels.
        InputError: it has too many bytes, the label cannot be one, or the gallery's folder cannot be written.
    """
    shown = printable_path(name)
    folder_name = None if label is None else check_folder_label(label)
    if len(data) > max_bytes:
        raise InputError(f"{shown}: {len(data):,} bytes, at most {max_bytes:,} are taken; use a smaller copy")
    decode_image(data, name=shown, target_side=1, max_pixels=max_pixels)
    folder = gallery / ADDED if folder_name is None else gallery / ADDED / folder_name
    path = folder / f"{hashlib.sha256(data).hexdigest()}.{_find_extension(data)}"
    if not path.is_file() or path.stat().st_size != len(data):
        try:
            _write_image(gallery / INCOMING, data, target=path)
        except OSError as error:
            raise InputError(
                f"{shown}: it cannot be kept in the gallery's folder {ADDED}: {error.strerror or error}; mend the "
                "cause and send it again"
            ) from error
    return AddedImage(path, folder_name)


def _find_extension(data: bytes) -> str:
    """What the content is, whatever its sender called it."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        kind = image.format or ""
    return _EXTENSIONS.get(kind, kind.lower())


def _write_image(incoming: Path, data: bytes, *, target: Path) -> None:
    """Through a folder that no scan meets, so that a killed server leaves no half image among the others."""
    target.parent.mkdir(parents=True, exist_ok=True)
    incoming.mkdir(exist_ok=True)
    whole = incoming / secrets.token_hex(16)
    write_durably(whole, data)
    whole.replace(target)
    for folder in (target.parent, target.parent.parent):
        sync_path(folder)


def name_sources(gallery: Path, images: Iterable[AddedImage]) -> list[Path]:
    """What `add_to_gallery` is to be given: the files, or all of `added` while that is no source yet.

    Raises:
        GalleryError: the gallery is damaged.
    """
    folder = gallery.resolve() / ADDED
    with _current_catalog(gallery) as catalog:
        is_source = Source("folder", str(folder)) in catalog.sources().values()
    return sorted({image.path for image in images}) if is_source else [folder]


def find_label_file(gallery: Path) -> Path | None:
    """The file that gives the labels of all the gallery's images, where it was built with one.

    Raises:
        GalleryError: the gallery is damaged.
    """
    with _current_catalog(gallery) as catalog:
        name = catalog.setting("labels")
    return None if name is None else Path(json.loads(name))


def read_added_rows(gallery: Path) -> dict[Path, CatalogRow]:
    """The items of the current version that lie in `added`, by absolute path.

    Raises:
        GalleryError: the gallery is damaged.
    """
    folder = gallery.resolve() / ADDED
    with _current_catalog(gallery) as catalog:
        numbers = [n for n, source in catalog.sources().items() if source == Source("folder", str(folder))]
        ids = [image_id for number in numbers for image_id, _ in catalog.paths(number)]
        return {folder / row.path: row for row in catalog.rows_of(ids)}


@contextmanager
def _current_catalog(gallery: Path) -> Iterator[Catalog]:
    """The catalogue of the version that is on the disk now, which may be newer than the one that is served."""
    version, hold = hold_current(gallery)
    try:
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            yield catalog
    finally:
        os.close(hold)


def clear_incoming(gallery: Path) -> None:
    """Remove what a killed server left half written, an hour ago or longer."""
    left = gallery / INCOMING
    for path in left.iterdir() if left.is_dir() else ():
        with suppress(OSError):  # it is only in the way, and the next start tries again
            if path.stat().st_mtime < time.time() - _STALE_SECONDS:
                path.unlink()


def find_forgotten(gallery: Path) -> list[AddedImage]:
    """Files in `added` that the gallery has no item of: a server was stopped after it took them."""
    folder = gallery.resolve() / ADDED
    if not folder.is_dir():
        return []
    known = read_added_rows(gallery)
    files = [folder / found.relative_path for found in walk_folder(folder) if found.problem is None]
    return [
        AddedImage(path, None if path.parent == folder else path.relative_to(folder).parts[0])
        for path in files
        if path not in known
    ]
