"""Parts of a gallery: marked folders, removed only where they have its identity."""

import errno
import json
import logging
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from index.durable import create_durably, write_durably
from index.errors import GalleryDamagedError, GalleryError
from index.markers import (
    BESIDE,
    GALLERY_KIND,
    GALLERY_MARK,
    PART_KIND,
    PART_MARK,
    is_part,
    is_vacant,
    read_mark,
    read_object,
)
from index.text import printable_path
from index.versions.manifest import FORMAT_VERSION

logger = logging.getLogger(__name__)

BUILDING = "building"
UPGRADE = "upgrade"  # vectors of the next model
PLAN_NAME = "plan.json"
SHARDS, SHARDS_PLAN = "shards", "shards.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REMOVAL_ATTEMPTS = 3
_OWN_FILE = re.compile(  # of work in progress, a version or shards
    r"(version/)?(part\.json|manifest\.json|model(\.text)?\.onnx|model\.tokenizer\.json)"
    r"|(version/)?((copy|untrained)/)?(index\.faiss|deleted\.npy|(vectors|ids)/\d{5,9}\.npy)|checkpoints/\d{9}\.npy(\.tmp)?"
    r"|((version/)?catalog\.sqlite|before\.sqlite(\.tmp)?)(-wal|-shm|-journal)?"
    r"|plan\.json(\.tmp)?|shards\.json|vectors\.sqlite(-journal)?|\d{5,}-of-\d{5,}/[0-9a-f]{32}\.npz|([^/]+/){0,3}\.retrieval-[0-9a-f]{16}\.tmp(-journal)?"
)
_OWN_FOLDER = re.compile(
    r"checkpoints|version|\d{5,}-of-\d{5,}|(version/)?(copy|untrained|((copy|untrained)/)?(vectors|ids))"
)


def read_plan(gallery: Path) -> Mapping[str, Any] | None:
    """The plan of unfinished work: base version and model; None without a readable one."""
    values = read_object(gallery / BUILDING / PLAN_NAME)
    if values is None or values.get("format_version") != FORMAT_VERSION or "base" not in values:
        return None
    model = values.get("model_sha256")
    return values if isinstance(model, str) and _SHA256.fullmatch(model) else None


def describe_no_gallery(path: Path) -> str:
    """The message for a path that is not a gallery."""
    if not path.exists():
        return "no such folder of images, and no such gallery; `retrieval index build SOURCE` makes one"
    if not path.is_dir():
        return "a file, and no gallery; GALLERY, which comes first, is a folder that `retrieval index build` made"
    if (path / SHARDS / SHARDS_PLAN).is_file():
        return "no gallery yet, but shards of one: when all are made, run `retrieval index merge`"
    whole = Path(os.path.abspath(path))
    beside = whole.with_name(whole.name + BESIDE) if whole.name else None
    if beside is not None and beside.is_dir() and ((beside / "CURRENT").is_file() or read_plan(beside) is not None):
        near = path.with_name(beside.name) if path.name == whole.name else beside
        return f"images and no gallery; theirs is beside them: {printable_path(near)}"
    with suppress(OSError):
        if is_vacant(path):
            return "an empty folder: neither a gallery nor images are in it"
    return (
        "there is no gallery, nor one in the making; GALLERY, which comes first, is the folder that "
        "`retrieval index build --out` made"
    )


def make_mark(gallery: Path, *, identity: str | None = None) -> str:
    """Mark a folder as a gallery, with a new or given identity; the resulting identity."""
    document = {"kind": GALLERY_KIND, "id": identity or secrets.token_hex(16)}
    create_durably(gallery / GALLERY_MARK, _to_bytes(document))
    found = read_mark(gallery)
    if found is None:
        raise GalleryDamagedError(printable_path(str(gallery / GALLERY_MARK)), "damaged: not the mark of a gallery")
    return found


def identify(gallery: Path) -> str:
    identity = read_mark(gallery)
    if identity is None:
        raise GalleryDamagedError(printable_path(str(gallery / GALLERY_MARK)), "damaged or missing")
    return identity


def mark_part(folder: Path, *, of: str, **details: Any) -> None:
    write_durably(folder / PART_MARK, _to_bytes({"kind": PART_KIND, "gallery": of, **details}))


def make_part(gallery: Path, name: str) -> Path:
    """Create a folder in a gallery, marked as its part, which may be removed later."""
    folder, identity = gallery / name, identify(gallery)
    folder.mkdir(exist_ok=True)
    if is_part(folder, of=identity):
        return folder
    if folder.is_symlink() or not is_vacant(folder):
        raise GalleryError(
            folder,
            "the gallery needs this name, but did not make this folder; nothing in it was touched: move it elsewhere "
            "and run the command again",
        )
    mark_part(folder, of=identity)
    return folder


def remove_part(folder: Path, *, of: str) -> bool:
    """Remove a part and the program's files in it, the mark last; foreign files stay. Whether it was a part."""
    if not is_part(folder, of=of):
        return False
    for attempt in range(_REMOVAL_ATTEMPTS):
        others = remove_own(folder)
        try:
            (folder / PART_MARK).unlink(missing_ok=True)
            if others:
                shown = printable_path(folder)
                logger.warning("%s: not removed, because it has a foreign file, %s", shown, printable_path(others[0]))
                return True
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:  # SQLite of a reader may create a file at the same time
            mark_part(folder, of=of)
            if error.errno != errno.ENOTEMPTY or attempt + 1 == _REMOVAL_ATTEMPTS:
                raise
        else:
            return True
    return True


def remove_own(folder: Path) -> list[str]:
    """Remove the program's files and folders of a part, but its mark; the paths of foreign ones."""
    others = []

    def heed(error: OSError) -> None:
        if error.errno != errno.ENOENT:
            raise error

    for above, folders, files in os.walk(folder, topdown=False, onerror=heed):
        for path in (Path(above, name) for name in (*files, *folders)):
            below = path.relative_to(folder).as_posix()
            is_folder = path.is_dir() and not path.is_symlink()
            if below == PART_MARK:
                continue
            if not is_folder and _OWN_FILE.fullmatch(below):
                path.unlink(missing_ok=True)
            elif is_folder and _OWN_FOLDER.fullmatch(below) and not any(path.iterdir()):
                path.rmdir()
            else:
                others.append(below)
    return others


def _to_bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode("ascii") + b"\n"
