"""Writes the vectors of a version as files: what changed is written, what did not is shared with the version before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.durable import link_file
from index.outputs import KIND
from index.progress import BeginStep, no_steps
from index.vectors.ann_building import build_ann_index, retune_ann_index
from index.vectors.ann_config import AnnConfig
from index.vectors.files import is_shared, read_deleted
from index.vectors.kinds import KINDS
from index.vectors.search import VectorSearch
from index.vectors.shards import HeldVectors, VectorFile, find_shards, read_shards, write_array, write_shards
from index.vectors.store import Publication, Published
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


@dataclass(frozen=True, slots=True)
class FileWriter:
    """The `StoreWriter` of a version folder, or of the part of it that is another output's.

    Attributes:
        folder: of the vectors, see `part_folder`.
        width: numbers of a vector.
        made: where the vectors of new members are; of an id the last one counts.
        output: whose vectors they are.
    """

    folder: Path
    config: AnnConfig
    width: int
    made: Sequence[HeldVectors]
    how: Publication
    begin_step: BeginStep = no_steps
    output: str = KIND

    def publish(self, new: Ids, deleted: Ids, base: Version | None) -> Published:
        """As `StoreWriter.publish`: a little is put beside what the base holds, more makes everything anew."""
        for name in ("vectors", "ids"):
            (self.folder / name).mkdir(parents=True)
        if base is None:
            return self._write_anew(new, self.made)
        manifest, home = Manifest.read(base).part(self.output), part_folder(base.folder, self.output)
        stored = list(find_shards(home))
        held = np.sort(np.concatenate([file.ids for file in stored]))
        gone = np.setdiff1d(np.union1d(read_deleted(home, manifest), deleted), new)
        fresh = np.setdiff1d(new, held, assume_unique=True)  # a deleted one that comes back is held still
        small = self._is_small(fresh, gone, stored, index=manifest.index)
        if self.how.compact or not small or self._is_other(manifest.index):
            _check(home, manifest, [name for name in manifest.files if name.startswith(("vectors/", "ids/"))])
            members = np.setdiff1d(np.union1d(held, fresh), gone, assume_unique=True)
            return self._write_anew(members, [*stored, *self.made])
        files = self._share(home, manifest)
        write_shards(self.folder, fresh, self.made, embedding_dim=self.width, first=len(stored))
        if len(gone):
            write_array(self.folder / DELETED_NAME, gone)
        index = manifest.index
        if self.how.tune or index["recall_target"] != self.config.recall_target:
            _check(home, manifest, [name for name in (INDEX_NAME, HELD_OUT_NAME) if name in manifest.files])
            index = self._measure(index, deleted=gone)
        return Published(index, len(gone), files)

    def _is_small(self, fresh: Ids, gone: Ids, stored: Sequence[VectorFile], *, index: dict[str, Any]) -> bool:
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

    def _is_other(self, index: dict[str, Any]) -> bool:
        return (index["index_type"], index["memory_limit"]) != (self.config.index_type, self.config.memory_limit)

    def _write_anew(self, members: Ids, files: Sequence[HeldVectors]) -> Published:
        write_shards(self.folder, members, files, embedding_dim=self.width)
        index = build_ann_index(
            read_shards(self.folder),
            config=self.config,
            folder=self.folder,
            queries=self.how.queries,
            begin_step=self.begin_step,
        )
        return Published(index, 0)

    def _measure(self, index: dict[str, Any], *, deleted: Ids) -> dict[str, Any]:
        """What the manifest says now of the ANN index that the version shares with its base."""
        search = VectorSearch.open(read_shards(self.folder), folder=self.folder, described=index, deleted=deleted)
        return retune_ann_index(
            search, described=index, config=self.config, queries=self.how.queries, begin_step=self.begin_step
        )

    def _share(self, home: Path, manifest: Manifest) -> dict[str, dict[str, Any]]:
        shared = {name: described for name, described in manifest.files.items() if is_shared(name)}
        for name in shared:
            check_file(home, name, manifest, contents=False)
            link_file(home / name, self.folder / name)
        return shared


def _check(home: Path, manifest: Manifest, names: Sequence[str]) -> None:
    """Damage must not be carried on under a new checksum, and what is measured must be what was built."""
    for name in names:
        check_file(home, name, manifest, contents=True)
