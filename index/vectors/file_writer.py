"""Writes the vectors of a version as files: what changed is written, what did not is shared with the version before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.durable import link_file
from index.vectors.ann_building import build_ann_index, retune_ann_index
from index.vectors.files import is_shared, read_deleted
from index.vectors.kinds import KINDS
from index.vectors.search import VectorSearch
from index.vectors.shards import HeldVectors, VectorFile, find_shards, read_shards, write_array, write_shards
from index.vectors.store import Published, WriterTask
from index.versions.manifest import (
    DELETED_NAME,
    HELD_OUT_NAME,
    INDEX_NAME,
    Manifest,
    Version,
    check_file,
    part_folder,
)

# How much of a version may lie beside its ANN index, which every search scans, before the next one is written anew.
_LOOSE_ROWS = 1024
_LOOSE_SHARDS = 32


def publish_files(task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
    """Publish as files, see `StoreKind.publish`: a little is put beside what the base holds, more makes all anew."""
    for name in ("vectors", "ids"):
        (task.folder / name).mkdir(parents=True)
    if base is None:
        return _write_anew(task, new, task.made)
    manifest, home = Manifest.read(base).part(task.output), part_folder(base.folder, task.output)
    stored = list(find_shards(home))
    held = np.sort(np.concatenate([file.ids for file in stored]))
    gone = np.setdiff1d(np.union1d(read_deleted(home, manifest), deleted), new)
    fresh = np.setdiff1d(new, held, assume_unique=True)  # a deleted one that comes back is held still
    small = _is_small(fresh, gone, stored, index=manifest.index)
    index, config = manifest.index, task.config
    is_other = (index["index_type"], index["memory_limit"]) != (config.index_type, config.memory_limit)
    if task.how.compact or not small or is_other:
        _check(home, manifest, [name for name in manifest.files if name.startswith(("vectors/", "ids/"))])
        members = np.setdiff1d(np.union1d(held, fresh), gone, assume_unique=True)
        return _write_anew(task, members, [*stored, *task.made])
    files = {name: described for name, described in manifest.files.items() if is_shared(name)}
    for name in files:
        check_file(home, name, manifest, contents=False)
        link_file(home / name, task.folder / name)
    write_shards(task.folder, fresh, task.made, embedding_dim=task.width, first=len(stored))
    if len(gone):
        write_array(task.folder / DELETED_NAME, gone)
    if task.how.tune or index["recall_target"] != config.recall_target:
        _check(home, manifest, [name for name in (INDEX_NAME, HELD_OUT_NAME) if name in manifest.files])
        search = VectorSearch.open(read_shards(task.folder), folder=task.folder, described=index, deleted=gone)
        index = retune_ann_index(
            search, described=index, config=config, queries=task.how.queries, begin_step=task.begin_step
        )
    return Published(index, len(gone), files)


def _is_small(fresh: Ids, gone: Ids, stored: Sequence[VectorFile], *, index: dict[str, Any]) -> bool:
    """Whether the base's vectors can stay, with a little beside them: ids must rise from shard to shard."""
    last, indexed_shards = max(int(file.ids[-1]) for file in stored), index["shards"]
    indexed = sum(len(file.ids) for file in stored[:indexed_shards])
    added = sum(len(file.ids) for file in stored[indexed_shards:]) + len(fresh)
    room = max(_LOOSE_ROWS, int(KINDS[index["type"]].loose_share * indexed))
    return (
        (not len(fresh) or int(fresh[0]) > last)
        and added <= room
        and len(gone) <= room
        and len(stored) - indexed_shards < _LOOSE_SHARDS
    )


def _write_anew(task: WriterTask, members: Ids, files: Sequence[HeldVectors]) -> Published:
    write_shards(task.folder, members, files, embedding_dim=task.width)
    index = build_ann_index(
        read_shards(task.folder),
        config=task.config,
        folder=task.folder,
        queries=task.how.queries,
        begin_step=task.begin_step,
    )
    return Published(index, 0)


def _check(home: Path, manifest: Manifest, names: Sequence[str]) -> None:
    """Damage must not be carried on under a new checksum, and what is measured must be what was built."""
    for name in names:
        check_file(home, name, manifest, contents=True)
