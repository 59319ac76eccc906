"""What the shards of a gallery have in common, recorded beside them by the first, so that the merge needs no more.

SHARDS/shards.json     what the gallery is to be made of, and how vectors are made
SHARDS/model.onnx      the model
SHARDS/00003-of-00008/ outcomes of the third eighth of the items; see `index.embedding.outcome_files`
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from index.durable import create_durably
from index.errors import GalleryError, InputError
from index.file_hash import hash_file
from index.marks import is_part, is_vacant, read_object
from index.model.embedder import Embedder
from index.text import printable_path
from index.versions.gallery_parts import identify, make_part
from index.versions.manifest import MODEL_NAME
from index.versions.work_plan import SHARDS, SHARDS_PLAN

_FORMAT_VERSION = 1
_FOLDER = re.compile(r"(\d{5,})-of-(\d{5,})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of a listing, the first of which has the `number` 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise InputError(f"a shard is I/N with I in 1..N, got {self.number}/{self.count}")

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.number:05d}-of-{self.count:05d}"

    def positions(self, total: int) -> range:
        """Which of so many items are its own: neighbours, and as many as others have, or one more or less."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)

    def __str__(self) -> str:
        return f"shard {self.number} of {self.count}"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What all shards of a gallery agree on.

    Attributes:
        sources: their locations.
        labels: the label file, if there is one.
        dedup: as `build_gallery` has it.
        duplicates: fields of the `DuplicateConfig`.
        index: fields of `AnnConfig` that were given.
        vectors: all that a vector depends on beside its image, of `describe_vectors`.
    """

    sources: list[str]
    labels: str | None
    dedup: str
    duplicates: dict[str, Any]
    index: dict[str, Any]
    vectors: dict[str, Any]

    @property
    def made_by(self) -> str:
        """A digest of what vectors depend on, which every file of outcomes names."""
        return hashlib.sha256(json.dumps(self.vectors, sort_keys=True).encode()).hexdigest()

    @property
    def model_sha256(self) -> str:
        """Of the model file."""
        return str(self.vectors["model_sha256"])

    @property
    def backend(self) -> str:
        """The name of the runtime that computes them, as the registry has it."""
        return str(self.vectors["runtime"]).partition(" ")[0]


def make_shards_folder(gallery: Path, named: Path | None) -> Path:
    """The folder of a gallery's shards, made if there is none: the one that was named, or a part of the gallery.

    Raises:
        GalleryError: it is somebody else's.
        OSError: it cannot be made.
    """
    if named is None:
        try:
            return make_part(gallery, SHARDS)
        except GalleryError:
            if is_part(gallery / SHARDS, of=identify(gallery)):  # another shard's process was as soon
                return gallery / SHARDS
            raise
    named.mkdir(parents=True, exist_ok=True)
    if read_object(named / SHARDS_PLAN) is None and not _is_ours(named):
        shown = printable_path(str(named))
        raise GalleryError(shown, "the folder has other files in it and no shards; give a new or empty one")
    return named


def _is_ours(folder: Path) -> bool:
    """Whether nothing is in a folder but what the first process of many puts there."""
    if is_vacant(folder):
        return True
    return (folder / SHARDS_PLAN).exists() or (folder / MODEL_NAME).exists()


def share_model(folder: Path, embedder: Embedder) -> Path:
    """The model as all shards have it, put beside them by the first.

    Raises:
        GalleryError: there is another one.
        OSError: it cannot be written.
    """
    model = folder / MODEL_NAME
    if not model.exists():
        create_durably(model, embedder.path.read_bytes())
    if (seen := hash_file(model)) != embedder.sha256:
        raise _other(folder, "vectors model_sha256", seen, embedder.sha256)
    return model


def share_plan(folder: Path, plan: ShardPlan) -> None:
    """Record the plan, or see that it is the one that is recorded.

    Raises:
        GalleryError: another shard was made of something else.
        OSError: it cannot be written.
    """
    document = {"format_version": _FORMAT_VERSION, **asdict(plan)}
    create_durably(folder / SHARDS_PLAN, json.dumps(document, indent=2).encode("ascii"))
    recorded = read_shard_plan(folder)
    seen, given = _flatten(asdict(recorded)), _flatten(asdict(plan))
    for name in given | seen:
        if seen.get(name) != given.get(name):
            raise _other(folder, name, seen.get(name), given.get(name))


def read_shard_plan(folder: Path) -> ShardPlan:
    """The plan of a folder of shards.

    Raises:
        GalleryError: there is none.
    """
    shown = printable_path(str(folder))
    if not os.path.lexists(folder / SHARDS_PLAN):
        advice = "make them with `retrieval index build MODEL SOURCE --out GALLERY --shard 1/8` and so on"
        raise GalleryError(shown, f"there are no shards; {advice}, or name their folder with --shards")
    document = read_object(folder / SHARDS_PLAN) or {}
    if document.get("format_version") != _FORMAT_VERSION:
        raise GalleryError(shown, f"{SHARDS_PLAN} is damaged, or of a newer program; begin anew in another folder")
    try:
        return ShardPlan(**{field.name: document[field.name] for field in fields(ShardPlan)})
    except KeyError as error:
        raise GalleryError(shown, f"{SHARDS_PLAN} is damaged: {error}; begin anew in another folder") from error


def list_counts(folder: Path) -> list[int]:
    """Into how many shards a listing was split: one number, but where people mix them; none where a cluster did it."""
    found = (_FOLDER.fullmatch(entry.name) for entry in os.scandir(folder))
    return sorted({int(match[2]) for match in found if match is not None})


def _flatten(values: dict[str, Any]) -> dict[str, Any]:
    """Named values with those of dictionaries among them, whose names begin with theirs."""
    flat = dict[str, Any]()
    for name, value in values.items():
        flat |= (
            {f"{name} {key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    return flat


def _other(folder: Path, name: str, seen: object, given: object) -> GalleryError:
    called = {"vectors model_sha256": "model (SHA-256)"}.get(name, name.removeprefix("vectors "))
    return GalleryError(
        printable_path(str(folder)),
        f"other shards are there already, whose {called} is {seen}, where {given} was given: shards of one gallery "
        "are made with the same model, sources and options; give those, or another folder with --shards",
    )
