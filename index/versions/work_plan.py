"""Where work in progress lies, and its two small files that let a stopped command be continued: plan and publication.

GALLERY/building/plan.json     what it starts from, and the model
GALLERY/building/publishing    the name of the complete version that takes the place of the current one
GALLERY/shards/                what many machines have embedded for it; see `index.writing.shard_plan`
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from index.durable import write_durably
from index.marks import BESIDE, is_part, is_vacant, read_object
from index.text import printable_path
from index.versions.manifest import FORMAT_VERSION

BUILDING = "building"
PLAN_NAME = "plan.json"
SHARDS, SHARDS_PLAN = "shards", "shards.json"
_ANNOUNCED_NAME = "publishing"
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
