"""Outcomes of embedded items as files, which any number of machines may write into one folder.

FOLDER/.../NAME.npz has the outcomes of some items. An item is known by a key, so that neither its number nor its
neighbours count; NAME is of the keys. A file is there whole or not at all, and one that is written twice is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.durable import replacing
from index.errors import GalleryError, ImageError
from index.network.remote_store import RemoteFile
from index.sources.items import EmbeddedItem, ItemFields
from index.text import printable_path

FORMAT_VERSION = 1
ENDING = ".npz"
_KEY_BYTES, _KEY, _SHA256 = 16, "S32", "S64"
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, IndexError, EOFError)

Keys = npt.NDArray[np.bytes_]
"""(n,) keys of items, 32 hexadecimal digits each."""


def key_item(location: str, item: ItemFields) -> str:
    """What an item of a source at a location is known by: where it is, its size and its time."""
    place = [location, item.path, item.archive, item.starts_at, item.size_bytes, item.mtime_ns]
    return hashlib.blake2b(json.dumps(place).encode("ascii"), digest_size=_KEY_BYTES).hexdigest()


def as_keys(keys: Iterable[str]) -> Keys:
    """Keys as an array."""
    return np.array(list(keys), dtype=_KEY)


def write_outcomes(folder: Path, keys: Sequence[str], items: Sequence[EmbeddedItem], *, made_by: str) -> Path:
    """Write a file of the outcomes of some items, durably and in one step.

    Args:
        folder: made if there is none.
        keys: of the items.
        items: in the same order; their ids are not written.
        made_by: digest of all that the vectors depend on beside the images.
    """
    folder.mkdir(exist_ok=True)  # what it lies in is there, or was merged and removed meanwhile
    problems = {
        row: (item.problem.path, item.problem.reason, item.problem.detail)
        for row, item in enumerate(items)
        if item.problem is not None
    }
    fetched = {row: astuple(item.fetched) for row, item in enumerate(items) if item.fetched is not None}
    told = {"format_version": FORMAT_VERSION, "made_by": made_by, "problems": problems, "fetched": fetched}
    head = json.dumps(told).encode("ascii")
    usable = [item for item in items if item.vector is not None]
    vectors = [item.vector for item in usable if item.vector is not None]
    path = folder / f"{hashlib.sha256(''.join(keys).encode()).hexdigest()[:32]}{ENDING}"
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            head=np.frombuffer(head, np.uint8),
            keys=as_keys(keys),
            sha256=np.array([item.sha256 or "" for item in items], dtype=_SHA256),
            phash=np.array([item.phash for item in usable], dtype="<i8"),
            vectors=np.stack(vectors).astype("<f4") if vectors else np.empty((0, 0), "<f4"),
        )
    return path


def find_outcome_files(folder: Path) -> list[Path]:
    """The files of outcomes at or below a folder, in a fixed order."""
    found = (Path(above, name) for above, _, names in os.walk(folder) for name in names if name.endswith(ENDING))
    return sorted(found)


@contextmanager
def opened_outcomes(path: Path, *, made_by: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A file of outcomes: its arrays by name, read when they are asked for, and its head.

    Raises:
        GalleryError: it is damaged, or made by another model or with other options.
    """
    shown = printable_path(str(path))
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            head: dict[str, Any] = json.loads(arrays["head"].tobytes())
            if head["made_by"] != made_by or head["format_version"] != FORMAT_VERSION:
                raise GalleryError(
                    shown, "made by another model or with other options than the shards beside it; move it elsewhere "
                    "and run its shard again",
                )  # fmt: skip
            yield arrays, head
    except (*_DAMAGE, OSError) as error:
        detail = f"damaged or unreadable ({error}); delete it and run its shard again: the others are kept"
        raise GalleryError(shown, detail) from error


def read_keys(path: Path, *, made_by: str) -> tuple[Keys, int]:
    """The keys of a file's items, and how many of these cannot be used."""
    with opened_outcomes(path, made_by=made_by) as (arrays, head):
        return arrays["keys"], len(head["problems"])


def read_outcomes(path: Path, *, made_by: str, width: int) -> tuple[Keys, list[EmbeddedItem]]:
    """The keys and outcomes of a file, whose ids count from 0."""
    with opened_outcomes(path, made_by=made_by) as (arrays, head):
        problems, remote = head["problems"], head["fetched"]
        keys, hashes = arrays["keys"], arrays["sha256"].tolist()
        phash, vectors = arrays["phash"].tolist(), arrays["vectors"].astype(np.float32)
        usable = len(keys) - len(problems)
        if len(hashes) != len(keys) or len(phash) != usable or vectors.shape != (usable, width if usable else 0):
            raise ValueError(f"{vectors.shape} vectors of {usable} images, expected a width of {width}")
        items, made = [], iter(zip(vectors, phash, strict=True))
        for number, sha256 in enumerate(hash_.decode("ascii") or None for hash_ in hashes):
            fetched = RemoteFile(*remote[str(number)]) if str(number) in remote else None
            if str(number) in problems:
                name, reason, detail = problems[str(number)]
                error = ImageError(path=name, reason=reason, detail=detail)
                items.append(EmbeddedItem(number, sha256=sha256, problem=error, fetched=fetched))
            else:
                vector, own = next(made)
                items.append(EmbeddedItem(number, vector=vector, sha256=sha256, phash=own, fetched=fetched))
    return keys, items
