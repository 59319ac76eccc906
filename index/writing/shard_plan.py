"""The folder of shards: the plan, and the outcomes of items, which the merge reads.

SHARDS/shards.json     the plan: sources, options, and everything that vectors depend on; written by the first shard
SHARDS/model.onnx      the model
SHARDS/00003-of-00008/ outcomes of the third eighth of the items

A file NAME.npz has the outcomes of some items, by keys that do not depend on ids or order; NAME is a hash of the keys.
Files are written atomically, and writing one twice gives the same file.
"""

import hashlib
import json
import os
import re
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.catalog.reader import Catalog
from index.durable import create_durably, hash_file, replacing
from index.errors import GalleryError, ImageError, InputError
from index.items import EmbeddedItem, ItemFields
from index.markers import is_part, is_vacant, read_object
from index.measures import MEASURES, Measures
from index.model.embedder import Embedder
from index.text import printable_path
from index.versions.gallery_parts import SHARDS, SHARDS_PLAN, identify, make_part
from index.versions.manifest import MODEL_NAME

FORMAT_VERSION = 2
ENDING = ".npz"
_KEY_BYTES, _KEY, _SHA256 = 16, "S32", "S64"
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, IndexError, EOFError)
_NAMED_SHARDS = 12
_FOLDER = re.compile(r"(\d{5,})-of-(\d{5,})")

Keys = npt.NDArray[np.bytes_]
"""(n,) keys of items, 32 hexadecimal digits each."""


def key_item(location: str, item: ItemFields) -> str:
    """The key of an item of a source at a location: a hash of its place, size and time."""
    place = [location, item.path, item.archive, item.starts_at, item.size_bytes, item.mtime_ns]
    return hashlib.blake2b(json.dumps(place).encode("ascii"), digest_size=_KEY_BYTES).hexdigest()


def as_keys(keys: Iterable[str]) -> Keys:
    return np.array(list(keys), dtype=_KEY)


def write_outcomes(folder: Path, keys: Sequence[str], items: Sequence[EmbeddedItem], *, made_by: str) -> Path:
    """Write a file of outcomes, durably and atomically.

    Args:
        keys: of the items, in the same order.
        items: their ids are not written.
        made_by: digest of all that the vectors depend on beside the images.
    """
    folder.mkdir(exist_ok=True)  # without its parents, which a merge may have removed meanwhile
    problems = {
        row: (item.problem.path, item.problem.reason, item.problem.detail)
        for row, item in enumerate(items)
        if item.problem is not None
    }
    fetched = {row: item.fetched for row, item in enumerate(items) if item.fetched is not None}
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
            measures=np.array([(item.measures or Measures()).to_numbers() for item in usable], dtype="<f8").reshape(
                -1, len(MEASURES)
            ),
            vectors=np.stack(vectors).astype("<f4") if vectors else np.empty((0, 0), "<f4"),
        )
    return path


def find_outcome_files(folder: Path) -> list[Path]:
    """Files of outcomes in a folder and below, in a fixed order."""
    found = (Path(above, name) for above, _, names in os.walk(folder) for name in names if name.endswith(ENDING))
    return sorted(found)


@contextmanager
def opened_outcomes(path: Path, *, made_by: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A file of outcomes: its arrays by name, read on demand, and its head."""
    shown = printable_path(str(path))
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            head: dict[str, Any] = json.loads(arrays["head"].tobytes())
            if head["made_by"] != made_by or head["format_version"] != FORMAT_VERSION:
                raise GalleryError(
                    shown,
                    "made by another model or with other options than the shards beside it; move it elsewhere "
                    "and run its shard again",
                )
            yield arrays, head
    except (*_DAMAGE, OSError) as error:
        detail = f"damaged or unreadable ({error}); delete it and run its shard again: the others are kept"
        raise GalleryError(shown, detail) from error


def read_keys(path: Path, *, made_by: str) -> tuple[Keys, int]:
    """The keys of a file's items, and the number of unusable ones."""
    with opened_outcomes(path, made_by=made_by) as (arrays, head):
        return arrays["keys"], len(head["problems"])


def read_outcomes(path: Path, *, made_by: str, width: int) -> tuple[Keys, list[EmbeddedItem]]:
    """The keys and outcomes of a file, with ids from 0."""
    with opened_outcomes(path, made_by=made_by) as (arrays, head):
        problems, remote = head["problems"], head["fetched"]
        keys, hashes = arrays["keys"], arrays["sha256"].tolist()
        phash, vectors = arrays["phash"].tolist(), arrays["vectors"].astype(np.float32)
        measures = arrays["measures"]
        usable = len(keys) - len(problems)
        if len(hashes) != len(keys) or len(phash) != usable or vectors.shape != (usable, width if usable else 0):
            raise ValueError(f"{vectors.shape} vectors of {usable} images, expected a width of {width}")
        if measures.shape != (usable, len(MEASURES)):
            raise ValueError(f"{measures.shape} measures of {usable} images")
        items, made = [], iter(zip(vectors, phash, map(Measures.from_numbers, measures), strict=True))
        for number, sha256 in enumerate(hash_.decode("ascii") or None for hash_ in hashes):
            fetched = tuple(remote[str(number)]) if str(number) in remote else None
            if str(number) in problems:
                name, reason, detail = problems[str(number)]
                error = ImageError(path=name, reason=reason, detail=detail)
                items.append(EmbeddedItem(number, sha256=sha256, problem=error, fetched=fetched))
            else:
                vector, own, measured = next(made)
                items.append(
                    EmbeddedItem(number, vector=vector, sha256=sha256, phash=own, measures=measured, fetched=fetched)
                )
    return keys, items


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


def make_shards_folder(gallery: Path, named: Path | None) -> Path:
    """Create the folder of a gallery's shards: the named one, or a part of the gallery."""
    if named is None:
        try:
            return make_part(gallery, SHARDS)
        except GalleryError:
            if is_part(gallery / SHARDS, of=identify(gallery)):  # another process made it at the same time
                return gallery / SHARDS
            raise
    named.mkdir(parents=True, exist_ok=True)
    if not is_vacant(named) and not any((named / name).exists() for name in (SHARDS_PLAN, MODEL_NAME)):
        shown = printable_path(str(named))
        raise GalleryError(shown, "the folder has other files in it and no shards; give a new or empty one")
    return named


def share_model(folder: Path, embedder: Embedder) -> Path:
    """Copy the model into the folder of shards, or check that it is the same."""
    model = folder / MODEL_NAME
    if not model.exists():
        create_durably(model, embedder.path.read_bytes())
    if (seen := hash_file(model)) != embedder.sha256:
        raise _other(folder, "vectors model_sha256", seen, embedder.sha256)
    return model


def share_plan(folder: Path, plan: ShardPlan) -> None:
    """Record the plan, or check that it is the recorded one."""
    document = {"format_version": FORMAT_VERSION, **asdict(plan)}
    create_durably(folder / SHARDS_PLAN, json.dumps(document, indent=2).encode("ascii"))
    recorded = read_shard_plan(folder)
    seen, given = _flatten(asdict(recorded)), _flatten(asdict(plan))
    for name in given | seen:
        if seen.get(name) != given.get(name):
            raise _other(folder, name, seen.get(name), given.get(name))


def read_shard_plan(folder: Path) -> ShardPlan:
    """The plan of a folder of shards."""
    shown = printable_path(str(folder))
    if not os.path.lexists(folder / SHARDS_PLAN):
        advice = "make them with `retrieval index build MODEL SOURCE --out GALLERY --shard 1/8` and so on"
        raise GalleryError(shown, f"there are no shards; {advice}, or name their folder with --shards")
    document = read_object(folder / SHARDS_PLAN) or {}
    if document.get("format_version") != FORMAT_VERSION:
        raise GalleryError(shown, f"{SHARDS_PLAN} is damaged, or of a newer program; begin anew in another folder")
    try:
        return ShardPlan(**{field.name: document[field.name] for field in fields(ShardPlan)})
    except KeyError as error:
        raise GalleryError(shown, f"{SHARDS_PLAN} is damaged: {error}; begin anew in another folder") from error


def list_counts(folder: Path) -> list[int]:
    """The numbers N of shards I/N in a folder, rising; several where builds differed."""
    found = (_FOLDER.fullmatch(entry.name) for entry in os.scandir(folder))
    return sorted({int(match[2]) for match in found if match is not None})


def _flatten(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested dictionaries; names of inner values begin with the outer name."""
    nested = {name: value if isinstance(value, dict) else {"": value} for name, value in values.items()}
    return {f"{name} {key}".strip(): each for name, value in nested.items() for key, each in value.items()}


def _other(folder: Path, name: str, seen: object, given: object) -> GalleryError:
    called = {"vectors model_sha256": "model (SHA-256)"}.get(name, name.removeprefix("vectors "))
    return GalleryError(
        printable_path(str(folder)),
        f"other shards are there already, whose {called} is {seen}, where {given} was given: shards of one gallery "
        "are made with the same model, sources and options; give those, or another folder with --shards",
    )


def are_known(keys: Keys, known: Keys) -> npt.NDArray[np.bool_]:
    """(n,) bool: which of (n,) keys are among rising `known` keys."""
    if not len(known):
        return np.zeros(len(keys), bool)
    found: npt.NDArray[np.bool_] = known[np.searchsorted(known, keys).clip(max=len(known) - 1)] == keys
    return found


def check_complete(catalog: Catalog, folder: Path) -> None:
    """Check that shards have the outcome of every pending row."""
    _, wanted = _pending_keys(catalog)
    made_by = read_shard_plan(folder).made_by
    found = [read_keys(path, made_by=made_by)[0] for path in find_outcome_files(folder)]
    known = np.unique(np.concatenate([as_keys([]), *found]))
    is_missing = ~are_known(wanted, known)
    if is_missing.any():
        strange = not are_known(known, np.sort(wanted)).all()
        raise GalleryError(printable_path(str(folder)), _describe_missing(folder, is_missing, strange=strange))


def find_outcomes(catalog: Catalog, folder: Path, *, width: int) -> Generator[list[EmbeddedItem], None, None]:
    """The outcome of every pending row, once, a file at a time."""
    made_by = read_shard_plan(folder).made_by
    ids, wanted = _pending_keys(catalog)
    order = np.argsort(wanted)
    ids, wanted = ids[order], wanted[order]
    is_open = np.ones(len(wanted), bool)
    for path in find_outcome_files(folder):
        keys, items = read_outcomes(path, made_by=made_by, width=width)
        rows = np.flatnonzero(are_known(keys, wanted))
        places = np.searchsorted(wanted, keys[rows])
        fresh = is_open[places]  # an item of two shards counts once
        is_open[places] = False
        outcomes = []
        for row, place in zip(rows[fresh].tolist(), places[fresh].tolist(), strict=True):
            outcomes.append(replace(items[row], id=int(ids[place])))
        if outcomes:
            yield outcomes
    if is_open.any():
        raise GalleryError(printable_path(str(folder)), f"{int(is_open.sum())} outcomes are gone; merge again")


def _pending_keys(catalog: Catalog) -> tuple[Ids, Keys]:
    sources, ids, keys = catalog.sources(), list[int](), list[bytes]()
    for row in catalog.rows(status="pending"):
        ids.append(row.id)
        keys.append(key_item(sources[row.source].location, row).encode())
    return np.array(ids, np.int64), np.array(keys, as_keys([]).dtype)


def _describe_missing(folder: Path, is_missing: npt.NDArray[np.bool_], *, strange: bool) -> str:
    """The message that names the shards to run again."""
    counts, total = list_counts(folder), len(is_missing)
    seen = f"{int(is_missing.sum()):,} of {total:,} images are in no shard"
    if len(counts) > 1:
        mixed = " and ".join(map(str, counts))
        return f"{seen}: there are shards of {mixed}; run all those of one number, what is done is kept"
    if not counts:
        return f"{seen}; run again what made the shards: what is done is kept"
    [count] = counts
    parts = list[str]()
    for shard in (Shard(number, count) for number in range(1, count + 1)):
        own = shard.positions(total)
        lacks = int(is_missing[own.start : own.stop].sum())
        if lacks:
            is_there = (folder / shard.folder).is_dir()
            parts.append(
                f"{shard.number} has {len(own) - lacks:,} of {len(own):,}" if is_there else f"{shard.number} is missing"
            )
    named = ", ".join(parts[:_NAMED_SHARDS]) + (", …" if parts[_NAMED_SHARDS:] else "")
    why = ", for the sources or the gallery changed since some were made" if strange else ""
    return f"{seen}{why}: of {count} shards {named}; run these again, what is done is kept"
