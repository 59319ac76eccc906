"""The outcomes that shards hold, for the merge: whether none is missing, and each with the id of its row."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.catalog.reader import Catalog
from index.embedding.engine import EmbeddedItem
from index.embedding.outcome_files import Keys, as_keys, find_outcome_files, key_item, read_head, read_outcomes
from index.errors import GalleryError
from index.text import printable_path
from index.writing.shard_plan import Shard, list_counts, read_shard_plan

_NAMED_SHARDS = 12


def read_known_keys(folder: Path, *, made_by: str) -> Keys:
    """The keys of all items that have an outcome at or below a folder, in rising order.

    Raises:
        GalleryError: a file is damaged, or of another model.
    """
    heads = (read_head(path, made_by=made_by).keys for path in find_outcome_files(folder))
    return np.unique(np.concatenate([as_keys([]), *heads]))


def are_known(keys: Keys, known: Keys) -> npt.NDArray[np.bool_]:
    """(n,) bool: which of (n,) keys are among those in rising order."""
    if not len(known):
        return np.zeros(len(keys), bool)
    found: npt.NDArray[np.bool_] = known[np.searchsorted(known, keys).clip(max=len(known) - 1)] == keys
    return found


def check_complete(catalog: Catalog, folder: Path) -> None:
    """See that shards hold the outcome of every pending row.

    Raises:
        GalleryError: which shards are missing, half done, or of sources that changed since.
    """
    _, wanted = _pending_keys(catalog)
    known = read_known_keys(folder, made_by=read_shard_plan(folder).made_by)
    is_missing = ~are_known(wanted, known)
    if is_missing.any():
        strange = not are_known(known, np.sort(wanted)).all()
        raise GalleryError(printable_path(str(folder)), _describe_missing(folder, is_missing, strange=strange))


def find_outcomes(catalog: Catalog, folder: Path, *, width: int) -> Generator[list[EmbeddedItem], None, None]:
    """The outcome of every pending row, once, a file at a time.

    Raises:
        GalleryError: a file is damaged, or an outcome is missing.
    """
    made_by = read_shard_plan(folder).made_by
    ids, wanted = _pending_keys(catalog)
    order = np.argsort(wanted)
    ids, wanted = ids[order], wanted[order]
    is_open = np.ones(len(wanted), bool)
    for path in find_outcome_files(folder):
        keys, items = read_outcomes(path, made_by=made_by, width=width)
        rows = np.flatnonzero(are_known(keys, wanted))
        places = np.searchsorted(wanted, keys[rows])
        fresh = is_open[places]  # what two shards have is taken from one
        is_open[places] = False
        outcomes = []
        for row, place in zip(rows[fresh].tolist(), places[fresh].tolist(), strict=True):
            outcomes.append(replace(items[row], id=int(ids[place])))
        if outcomes:
            yield outcomes
    if is_open.any():
        raise GalleryError(printable_path(str(folder)), f"{int(is_open.sum())} outcomes are gone; merge again")


def _pending_keys(catalog: Catalog) -> tuple[Ids, Keys]:
    """The ids of the pending rows, and their keys."""
    sources, ids, keys = catalog.sources(), list[int](), list[bytes]()
    for row in catalog.rows(status="pending"):
        ids.append(row.id)
        keys.append(key_item(sources[row.source].location, row).encode())
    return np.array(ids, np.int64), np.array(keys, as_keys([]).dtype)


def _describe_missing(folder: Path, is_missing: npt.NDArray[np.bool_], *, strange: bool) -> str:
    """Which shards to run again, from (n,) bool in the order of the listing."""
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
            parts.append(f"{shard.number} has {len(own) - lacks:,} of {len(own):,}" if is_there else
                         f"{shard.number} is missing")  # fmt: skip
    named = ", ".join(parts[:_NAMED_SHARDS]) + (", …" if parts[_NAMED_SHARDS:] else "")
    why = ", for the sources or the gallery changed since some were made" if strange else ""
    return f"{seen}{why}: of {count} shards {named}; run these again, what is done is kept"
