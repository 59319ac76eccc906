"""Uploaded images: a folder of the gallery, which is one of its sources.

GALLERY/annotations/added/SHA256.jpg          an image without a label, named by its bytes and their format
GALLERY/annotations/added/LABEL/SHA256.png    an image with a label: the first folder is the label, as in any source
GALLERY/annotations/incoming/                 unfinished uploads; whole files are moved to added/

The name of an image is its path below `added`.
"""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from index.catalog.rows import CatalogRow
from index.durable import replacing, sync_path
from index.errors import InputError
from index.images.decode import suffix_of
from index.images.image_files import decode_image
from index.labels.decided_labels import read_current_catalog
from index.labels.decisions import check_label
from index.sources.folder_walk import walk_folder
from index.text import printable_path
from index.versions.annotations import ANNOTATIONS, added_folder, incoming_folder

_MAX_NAME_BYTES = 255
_STALE_SECONDS = 3600
_WRITTEN_NAME = re.compile(r"[0-9a-f]{32}(\.tmp)?|\.retrieval-[0-9a-f]{16}\.tmp")


def check_folder_label(text: str) -> str:
    """The label, if it can be the name of a folder."""
    label = check_label(text)
    shown = printable_path(label)
    if label in (".", "..") or "/" in label or "\\" in label or label.startswith("."):
        problem = f"the label {shown} is not a plain folder name"
        raise InputError(f"{problem}: leave / and \\ and a dot at the start out")
    if len(label.encode()) > _MAX_NAME_BYTES:
        raise InputError(f"the label {shown} has more than {_MAX_NAME_BYTES} bytes, no folder can have such a name")
    return label


def store_image(gallery: Path, data: bytes, *, name: str, label: str | None, max_pixels: int) -> str:
    """Decode an image wholly, then keep its bytes durably, equal bytes and labels once; its name."""
    shown = printable_path(name)
    folder_name = None if label is None else check_folder_label(label)
    decode_image(data, name=shown, target_side=1, max_pixels=max_pixels)
    stored = f"{hashlib.sha256(data).hexdigest()}.{suffix_of(data)}"  # whatever its name says
    if folder_name is not None:
        _refuse_other_case(folder_name, folder=added_folder(gallery))
        stored = f"{folder_name}/{stored}"
    path = added_folder(gallery) / stored
    if not path.is_file() or path.stat().st_size != len(data):
        try:
            keep_file(gallery, [data], name=stored)
        except OSError as error:
            raise InputError(
                f"{shown}: it cannot be written to the gallery's folder {ANNOTATIONS}: {error.strerror or error}; "
                "fix the cause and send it again"
            ) from error
    return stored


def _refuse_other_case(label: str, *, folder: Path) -> None:
    """See that the folder of a label is its own, where the file system takes `cats` and `Cats` for one name."""
    if not (folder / label).is_dir() or label in (names := os.listdir(folder)):
        return
    other = next(printable_path(name) for name in names if (folder / name).samefile(folder / label))
    raise InputError(f"to this file system the label {printable_path(label)} is the label {other}; use {other}")


def keep_file(gallery: Path, blocks: Iterable[bytes], *, name: str) -> None:
    """Write a file below the folder of added images, durably: written in `incoming`, then moved, never half there."""
    incoming = incoming_folder(gallery)
    incoming.mkdir(parents=True, exist_ok=True)
    whole = incoming / secrets.token_hex(16)
    with replacing(whole) as temporary, temporary.open("wb") as file:
        for block in blocks:
            file.write(block)
    folder = added_folder(gallery)
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    whole.replace(target)
    above = (part for part in target.parents if part.is_relative_to(folder))
    for made in (*above, folder.parent, incoming.parent):
        sync_path(made)


def name_sources(gallery: Path, names: Iterable[str]) -> list[Path]:
    """The sources for `add_to_gallery`: the files, or the whole folder while it is not a source yet."""
    folder = added_folder(gallery)
    with read_current_catalog(gallery) as catalog:
        is_source = catalog.added_source() is not None
    return sorted({folder / name for name in names}) if is_source else [folder]


def find_label_file(gallery: Path) -> Path | None:
    """The label file of the gallery, where it was built with one."""
    with read_current_catalog(gallery) as catalog:
        return catalog.labels_file()


def read_added_rows(gallery: Path) -> dict[str, CatalogRow]:
    """The rows of the current version's added images, by their names."""
    with read_current_catalog(gallery) as catalog:
        number = catalog.added_source()
        ids = [] if number is None else [image_id for image_id, _ in catalog.paths(number)]
        return {row.path: row for row in catalog.rows_of(ids)}


def clear_incoming(gallery: Path) -> None:
    """Remove half-written files of a killed server that are an hour old."""
    left = incoming_folder(gallery)
    for path in left.iterdir() if left.is_dir() else ():
        with suppress(OSError):  # the next start tries again
            if _WRITTEN_NAME.fullmatch(path.name) and path.stat().st_mtime < time.time() - _STALE_SECONDS:
                path.unlink()


def find_forgotten(gallery: Path) -> list[str]:
    """Added images without a row: the server was stopped before it added them."""
    folder = added_folder(gallery)
    if not folder.is_dir():
        return []
    known = read_added_rows(gallery)
    return [found.path for found in walk_folder(folder) if found.problem is None and found.path not in known]


def forget_images(gallery: Path, names: Iterable[str]) -> None:
    """Remove added images that have not become images of the gallery."""
    for name in set(names).intersection(find_forgotten(gallery)):
        (added_folder(gallery) / name).unlink(missing_ok=True)
