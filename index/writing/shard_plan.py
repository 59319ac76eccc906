"""The folder of shards: the plan, and the outcomes of items, which the merge reads.

GALLERY/shards/shards.json     the plan: sources, options, and everything that vectors depend on
GALLERY/shards/model.onnx      the model
GALLERY/shards/00003-of-00008/ outcomes of the third eighth of the items

A file NAME.npz has the outcomes of some items, by keys that do not depend on ids or order; NAME is a hash of the keys.
Files are written atomically, and writing one twice gives the same file.
"""

import hashlib
import json
import os
import re
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from index.catalog.reader import Catalog
from index.durable import create_durably, replacing
from index.errors import GalleryError, ImageError, InputError
from index.items import EmbeddedItem, ItemFields
from index.markers import is_part, read_object
from index.measures import Measures
from index.versions.gallery_parts import SHARDS, SHARDS_PLAN, identify, make_part

FORMAT_VERSION = 3
_ENDING = ".npz"
_KEY_BYTES = 16
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError, StopIteration)
_NAMED_SHARDS = 12
_FOLDER = re.compile(r"(\d{5,})-of-(\d{5,})")


def key_item(location: str, item: ItemFields) -> str:
    """The key of an item of a source at a location: a hash of its place, size and time."""
    place = [location, item.path, item.archive, item.starts_at, item.size_bytes, item.mtime_ns]
    return hashlib.blake2b(json.dumps(place).encode("ascii"), digest_size=_KEY_BYTES).hexdigest()


def write_outcomes(folder: Path, items: Mapping[str, EmbeddedItem], *, made_by: str) -> Path:
    """Write a file of outcomes by key, durably and atomically; `made_by` is that of the plan."""
    folder.mkdir(exist_ok=True)  # without its parents, which a concurrent merge may have removed
    outcomes = {
        key: {
            "sha256": item.sha256,
            "phash": item.phash,
            "measures": None if item.measures is None else astuple(item.measures),
            "facts": item.facts,
            "problem": item.problem and (item.problem.path, item.problem.reason, item.problem.detail),
            "fetched": item.fetched,
        }
        for key, item in items.items()
    }
    head = json.dumps({"format_version": FORMAT_VERSION, "made_by": made_by, "outcomes": outcomes}).encode("ascii")
    vectors = [item.vector for item in items.values() if item.vector is not None]
    path = folder / f"{hashlib.sha256(''.join(items).encode()).hexdigest()[:32]}{_ENDING}"
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            head=np.frombuffer(head, np.uint8),
            vectors=np.stack(vectors).astype("<f4") if vectors else np.empty((0, 0), "<f4"),
        )
    return path


def find_outcome_files(folder: Path) -> list[Path]:
    """Files of outcomes in a folder and below, in a fixed order."""
    found = (Path(above, name) for above, _, names in os.walk(folder) for name in names if name.endswith(_ENDING))
    return sorted(found)


@contextmanager
def _opened(path: Path, made_by: str) -> Iterator[tuple[Any, dict[str, dict[str, Any]]]]:
    """A file of outcomes: its arrays by name, read on demand, and its outcomes without vectors by key."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            if head["made_by"] != made_by or head["format_version"] != FORMAT_VERSION:
                raise GalleryError(
                    path,
                    "made by another model or with other options than the shards beside it; move it elsewhere "
                    "and run its shard again",
                )
            yield arrays, head["outcomes"]
    except (*_DAMAGE, OSError) as error:
        detail = f"damaged or unreadable ({error}); delete it and run its shard again: the others are kept"
        raise GalleryError(path, detail) from error


def read_done(folder: Path, *, made_by: str) -> dict[str, bool]:
    """Whether each item with an outcome in a folder or below is usable, by key."""
    done = dict[str, bool]()
    for path in find_outcome_files(folder):
        with _opened(path, made_by) as (_, outcomes):
            done |= {key: one["problem"] is None for key, one in outcomes.items()}
    return done


def read_outcomes(path: Path, *, made_by: str, width: int) -> dict[str, EmbeddedItem]:
    """The outcomes of a file by key, with the id 0."""
    items = dict[str, EmbeddedItem]()
    with _opened(path, made_by) as (arrays, outcomes):
        vectors = arrays["vectors"].astype(np.float32)
        usable = sum(one["problem"] is None for one in outcomes.values())
        if vectors.shape != (usable, width if usable else 0):
            raise ValueError(f"{vectors.shape} vectors of {usable} images, expected a width of {width}")
        rows = iter(vectors)
        for key, one in outcomes.items():
            problem, measures, fetched = one["problem"], one["measures"], one["fetched"]
            items[key] = EmbeddedItem(
                0,
                vector=next(rows) if problem is None else None,
                sha256=one["sha256"],
                phash=one["phash"],
                measures=None if measures is None else Measures(*measures),
                facts=one["facts"],
                problem=problem and ImageError(path=problem[0], reason=problem[1], detail=problem[2]),
                fetched=None if fetched is None else (fetched[0], fetched[1]),
            )
    return items


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
        return f"{self.number:05d}-of-{self.count:05d}"

    def positions(self, total: int) -> range:
        """Its items of `total`: consecutive, and as many as in other shards, plus or minus one."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)

    def __str__(self) -> str:
        return f"shard {self.number} of {self.count}"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The arguments of `build_gallery` that all shards share, and `vectors`, of `describe_vectors`."""

    sources: list[str]
    labels: str | None
    dedup: str
    duplicates: dict[str, Any]
    index: dict[str, Any]
    vectors: dict[str, Any]

    @property
    def made_by(self) -> str:
        """A digest of `vectors`, which every file of outcomes has."""
        return hashlib.sha256(json.dumps(self.vectors, sort_keys=True).encode()).hexdigest()

    @property
    def model_sha256(self) -> str:
        return str(self.vectors["model_sha256"])

    @property
    def backend(self) -> str:
        return str(self.vectors["runtime"]).partition(" ")[0]


def make_shards_folder(gallery: Path) -> Path:
    try:
        return make_part(gallery, SHARDS)
    except GalleryError:
        if is_part(gallery / SHARDS, of=identify(gallery)):  # another process made it at the same time
            return gallery / SHARDS
        raise


def share_plan(folder: Path, plan: ShardPlan) -> None:
    """Record the plan, or check that it is the recorded one; model and options are in it."""
    document = {"format_version": FORMAT_VERSION, **asdict(plan)}
    create_durably(folder / SHARDS_PLAN, json.dumps(document, indent=2).encode("ascii"))
    seen, given = (
        {
            f"{name} {key}".strip(): each
            for name, value in asdict(one).items()
            for key, each in (value if isinstance(value, dict) else {"": value}).items()
        }
        for one in (read_shard_plan(folder), plan)
    )
    for name in given | seen:
        if seen.get(name) != given.get(name):
            called = {"vectors model_sha256": "model (SHA-256)"}.get(name, name.removeprefix("vectors "))
            raise GalleryError(
                folder,
                f"other shards are there already, whose {called} is {seen.get(name)}, where {given.get(name)} was "
                "given: shards of one gallery are made with the same model, sources and options; give those, or "
                "another --out",
            )


def read_shard_plan(folder: Path) -> ShardPlan:
    if not os.path.lexists(folder / SHARDS_PLAN):
        advice = "make them with `retrieval index build MODEL SOURCE --out GALLERY --shard 1/8` and so on"
        raise GalleryError(folder, f"there are no shards; {advice}")
    document = read_object(folder / SHARDS_PLAN) or {}
    if document.get("format_version") != FORMAT_VERSION:
        raise GalleryError(folder, f"{SHARDS_PLAN} is damaged, or of a newer program; delete the folder and begin anew")
    try:
        return ShardPlan(**{field.name: document[field.name] for field in fields(ShardPlan)})
    except KeyError as error:
        raise GalleryError(folder, f"{SHARDS_PLAN} is damaged: {error}; delete the folder and begin anew") from error


def list_counts(folder: Path) -> list[int]:
    """The numbers N of shards I/N in a folder, rising; several where builds differed."""
    found = (_FOLDER.fullmatch(entry.name) for entry in os.scandir(folder))
    return sorted({int(match[2]) for match in found if match is not None})


def check_complete(catalog: Catalog, folder: Path) -> None:
    """Check that shards have the outcome of every pending row."""
    wanted, done = _pending_ids(catalog), read_done(folder, made_by=read_shard_plan(folder).made_by)
    is_missing = [key not in done for key in wanted]
    if any(is_missing):
        raise GalleryError(folder, _describe_missing(folder, is_missing))


def find_outcomes(catalog: Catalog, folder: Path, *, width: int) -> Generator[list[EmbeddedItem], None, None]:
    """The outcome of every pending row, once, a file at a time."""
    made_by, wanted = read_shard_plan(folder).made_by, _pending_ids(catalog)
    for path in find_outcome_files(folder):
        found = read_outcomes(path, made_by=made_by, width=width).items()
        outcomes = [replace(item, id=wanted.pop(key)) for key, item in found if key in wanted]
        if outcomes:
            yield outcomes
    if wanted:
        raise GalleryError(folder, f"{len(wanted)} outcomes are gone; merge again")


def _pending_ids(catalog: Catalog) -> dict[str, int]:
    """The ids of pending rows by the keys of their items, in the order of ids."""
    sources = catalog.sources()
    return {key_item(sources[row.source].location, row): row.id for row in catalog.rows(status="pending")}


def _describe_missing(folder: Path, is_missing: Sequence[bool]) -> str:
    """The message that names the shards to run again."""
    counts, total = list_counts(folder), len(is_missing)
    seen = f"{sum(is_missing):,} of {total:,} images are in no shard"
    if len(counts) != 1:
        mixed = f": there are shards of {' and '.join(map(str, counts))}" if counts else ""
        return f"{seen}{mixed}; run all those of one number, what is done is kept"
    parts = [Shard(number, counts[0]).positions(total) for number in range(1, counts[0] + 1)]
    lacking = [number for number, part in enumerate(parts, start=1) if any(is_missing[part.start : part.stop])]
    named = ", ".join(map(str, lacking[:_NAMED_SHARDS])) + (", …" if lacking[_NAMED_SHARDS:] else "")
    return f"{seen}: run {named} of {counts[0]} again, what is done is kept"
