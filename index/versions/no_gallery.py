"""What somebody is told who named something that is no gallery: what it is instead, and what to name."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from index.marks import BESIDE, is_vacant
from index.text import printable_path
from index.versions.work_plan import SHARDS, SHARDS_PLAN, read_plan


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
