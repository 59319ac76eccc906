"""Parts of a gallery: marked as its own, removed only where they carry its identity, and the work in progress.

GALLERY/building/plan.json     what unfinished work starts from, and the model, so that a stopped command is continued
GALLERY/building/publishing    the name of the complete version that takes the place of the current one
GALLERY/shards/                what many machines have embedded for it; see `index.writing.shard_plan`
"""

from __future__ import annotations

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
from index.marks import (
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
PLAN_NAME = "plan.json"
SHARDS, SHARDS_PLAN = "shards", "shards.json"
_ANNOUNCED_NAME = "publishing"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REMOVAL_ATTEMPTS = 3
_OWN_FILE = re.compile(  # of work in progress, a version or shards
    r"(version/)?(part\.json|manifest\.json|model\.onnx)"
    r"|(version/)?((copy|untrained)/)?(index\.faiss|(held_out|deleted)\.npy|(vectors|ids)/\d{5,9}\.npy)|checkpoints/\d{9}\.npy(\.tmp)?"
    r"|((version/)?catalog\.sqlite|before\.sqlite(\.tmp)?)(-wal|-shm|-journal)?"
    r"|plan\.json(\.tmp)?|publishing|shards\.json|\d{5,}-of-\d{5,}/[0-9a-f]{32}\.npz|([^/]+/){0,3}\.retrieval-[0-9a-f]{16}\.tmp(-journal)?"
)
_OWN_FOLDER = re.compile(
    r"checkpoints|version|\d{5,}-of-\d{5,}|(version/)?(copy|untrained|((copy|untrained)/)?(vectors|ids))"
)


def read_plan(gallery: Path) -> Mapping[str, Any] | None:
    """What the work in progress starts from and by which model; None where there is no plan, or nothing like one."""
    values = read_object(gallery / BUILDING / PLAN_NAME)
    if values is None or values.get("format_version") != FORMAT_VERSION or "base" not in values:
        return None
    model = values.get("model_sha256")
    return values if isinstance(model, str) and _SHA256.fullmatch(model) else None


def announce(gallery: Path, version: str) -> None:
    """Say which version is about to be published, so that the next writer takes that one on, and no other."""
    write_durably(gallery / BUILDING / _ANNOUNCED_NAME, version.encode("ascii"))


def find_announced(gallery: Path, *, identity: str) -> str | None:
    """The version that was complete and about to be published when its writer was killed, or had just been."""
    if not is_part(gallery / BUILDING, of=identity):
        return None
    try:
        name = (gallery / BUILDING / _ANNOUNCED_NAME).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return name if name.isdigit() and is_part(gallery / "versions" / name, of=identity) else None


def describe_no_gallery(path: Path) -> str:
    """Why a path is no gallery, and what would be."""
    if not path.exists():
        return "no such gallery; make one with `retrieval index build SOURCE`"
    if not path.is_dir():
        return "a file, and no gallery; GALLERY, which comes first, is a folder that `retrieval index build` made"
    if (path / SHARDS / SHARDS_PLAN).is_file():
        return "no gallery yet, but shards of one: when all are made, run `retrieval index merge`"
    whole = Path(os.path.abspath(path))
    beside = whole.with_name(whole.name + BESIDE) if whole.name else None
    if (
        beside is not None
        and beside.is_dir()
        and ((beside / "CURRENT").is_file() or read_plan(beside) is not None)
    ):
        near = path.with_name(beside.name) if path.name == whole.name else beside
        return f"images and no gallery; theirs is beside them: {printable_path(str(near))}"
    with suppress(OSError):  # what it holds cannot be seen, and is named by whoever reads it
        if is_vacant(path):
            return "an empty folder: neither a gallery nor images are in it"
    return (
        "there is no gallery, nor one in the making; GALLERY, which comes first, is the folder that "
        "`retrieval index build --out` made"
    )


def make_mark(gallery: Path, *, identity: str | None = None) -> str:
    """Mark a folder as a gallery, of a new identity or a known one; that of the mark which is there in the end."""
    document = {"kind": GALLERY_KIND, "id": identity or secrets.token_hex(16)}
    create_durably(gallery / GALLERY_MARK, _to_bytes(document))
    found = read_mark(gallery)
    if found is None:
        raise GalleryDamagedError(printable_path(str(gallery / GALLERY_MARK)), "damaged: it is no gallery's mark")
    return found


def identify(gallery: Path) -> str:
    """The identity of a gallery that is being written."""
    identity = read_mark(gallery)
    if identity is None:
        raise GalleryDamagedError(printable_path(str(gallery / GALLERY_MARK)), "damaged or missing")
    return identity


def mark_part(folder: Path, *, of: str, **details: Any) -> None:
    """Write the mark into a folder that the program made."""
    write_durably(folder / PART_MARK, _to_bytes({"kind": PART_KIND, "gallery": of, **details}))


def make_part(gallery: Path, name: str) -> Path:
    """Make a folder in a gallery, and mark a new or empty one as the program's own, which it may remove later."""
    folder, identity = gallery / name, identify(gallery)
    folder.mkdir(exist_ok=True)
    if is_part(folder, of=identity):
        return folder
    if folder.is_symlink() or not is_vacant(folder):
        raise GalleryError(
            printable_path(str(folder)),
            "the gallery needs this name, but did not make this folder; nothing in it was touched: move it elsewhere "
            "and run the command again",
        )
    mark_part(folder, of=identity)
    return folder


def remove_part(folder: Path, *, of: str) -> bool:
    """Remove a part of a gallery with what the program wrote into it; whether it was one.

    What somebody else put there stays, in a folder that is no part any more. The mark goes last, so that what a kill
    leaves is a part still, or empty.
    """
    if not is_part(folder, of=of):
        return False
    for attempt in range(_REMOVAL_ATTEMPTS):
        others = remove_own(folder)
        try:
            (folder / PART_MARK).unlink(missing_ok=True)
            if others:
                shown = printable_path(str(folder))
                logger.warning("%s: not removed, for somebody put %s there", shown, printable_path(others[0]))
                return True
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:  # a reader of the catalogue may put a file of its own beside it meanwhile
            mark_part(folder, of=of)
            if error.errno != errno.ENOTEMPTY or attempt + 1 == _REMOVAL_ATTEMPTS:
                raise
        else:
            return True
    return True


def remove_own(folder: Path) -> list[str]:
    """Remove the files and folders that the program gives a part, but for its mark; the paths of all others."""
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
