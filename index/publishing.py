"""A finished version of a gallery: what changed is written, what did not is shared with the version before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.catalog_writer import CatalogWriter
from index.durable import link_file
from index.embedder import Vectors
from index.errors import GalleryDamagedError
from index.exact import Ids
from index.images import printable_path
from index.index_config import INDEX_SETTING, IndexConfig
from index.manifest import (
    CATALOG_NAME,
    DELETED_NAME,
    HELD_OUT_NAME,
    INDEX_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    Version,
    check_file,
    describe_file,
)
from index.model_file import ModelContract
from index.progress import BeginStep, no_steps
from index.vector_index import build_index, retune_index
from index.vector_search import VectorSearch
from index.vectors import VectorFile, find_shards, read_shards, write_array, write_shards

# How much of a version may lie beside its index file, in rows and as a share, before the next one is written anew.
_LOOSE_ROWS = 1024
_LOOSE_SHARE = {"flat": 0.1, "hnsw": 0.02, "ivf": 0.02, "pq": 0.02}  # what lies beside is scanned by every search
_LOOSE_SHARDS = 32


@dataclass(frozen=True, slots=True)
class Publication:
    """How a version is written.

    Attributes:
        compact: everything anew; else only what changed, as long as that is little.
        tune: the index is measured again.
        queries: (n, D) float32 unit vectors to measure it with, in place of those that it has not seen.
    """

    compact: bool = False
    tune: bool = False
    queries: Vectors | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """From the stored vectors of a base to a version's members: (n,) int64 rising ids."""

    new: Ids
    deleted: Ids


def write_version(
    version: Path,
    catalog: CatalogWriter,
    *,
    base: Version | None,
    checkpoints: Sequence[VectorFile],
    model: Path,
    contract: ModelContract,
    how: Publication,
    begin_step: BeginStep = no_steps,
) -> Manifest:
    """Write every file of a version into an empty folder.

    Args:
        version: the folder.
        catalog: rows that are all settled.
        base: the version that it starts from.
        checkpoints: the vectors made since.
        model: the model file, which every version shares.
        contract: of the model.
        how: see `Publication`.
        begin_step: called when a step begins that may take long.

    Raises:
        GalleryDamagedError: a file of the base, or a checkpoint, is not what it was.
    """
    for folder in ("vectors", "ids"):
        (version / folder).mkdir()
    link_file(model, version / MODEL_NAME)
    manifest = None if base is None else Manifest.read(base)
    members = np.array(catalog.indexed_ids(), dtype=np.int64)
    files: dict[str, dict[str, Any]] = {}
    writing = _Writing(
        version, IndexConfig.from_text(catalog.setting(INDEX_SETTING)), contract, how.queries, begin_step
    )
    if base is None or manifest is None:
        index, deleted = writing.write_anew(members, checkpoints), 0
    else:
        stored = list(find_shards(base.folder))
        change = _compare(members, stored)
        small = _is_small(change, stored, index=manifest.index)
        if how.compact or not small or writing.is_other_index(manifest.index):
            _check_vectors(base, manifest)
            index, deleted = writing.write_anew(members, [*stored, *checkpoints]), 0
        else:
            files = _share(version, base, manifest)
            write_shards(version, change.new, checkpoints, embedding_dim=contract.embedding_dim, first=len(stored))
            if len(change.deleted):
                write_array(version / DELETED_NAME, change.deleted)
            index, deleted = manifest.index, len(change.deleted)
            if how.tune or index["recall_target"] != writing.config.recall_target:
                _check_index(base, manifest)
                index = writing.measure(index, deleted=change.deleted)
    catalog.write_finished(version / CATALOG_NAME, compact=how.compact)
    for path in sorted(path for path in version.rglob("*") if path.is_file()):
        name = path.relative_to(version).as_posix()
        files[name] = files.get(name) or describe_file(path)
    finished = _describe(catalog, contract, index=index, deleted=deleted, files=files)
    (version / MANIFEST_NAME).write_text(finished.to_json(), encoding="utf-8")
    return finished


def _compare(members: Ids, stored: Sequence[VectorFile]) -> _Change:
    ids = np.sort(np.concatenate([file.ids for file in stored]))
    return _Change(
        new=np.setdiff1d(members, ids, assume_unique=True), deleted=np.setdiff1d(ids, members, assume_unique=True)
    )


def _is_small(change: _Change, stored: Sequence[VectorFile], *, index: Mapping[str, Any]) -> bool:
    """Whether the members can be the base's vectors with a little beside them: ids must rise from shard to shard."""
    last, indexed_shards = max(int(file.ids[-1]) for file in stored), index["shards"]
    indexed = sum(len(file.ids) for file in stored[:indexed_shards])
    added = sum(len(file.ids) for file in stored[indexed_shards:]) + len(change.new)
    room = max(_LOOSE_ROWS, int(_LOOSE_SHARE[index["type"]] * indexed))
    return (
        (not len(change.new) or int(change.new[0]) > last)
        and added <= room
        and len(change.deleted) <= room
        and len(stored) - indexed_shards < _LOOSE_SHARDS
    )


def _check_vectors(base: Version, manifest: Manifest) -> None:
    """Damage must not be carried on under a new checksum."""
    for name in manifest.files:
        if name.startswith(("vectors/", "ids/")):
            check_file(base.folder, name, manifest, contents=True)


@dataclass(frozen=True, slots=True)
class _Writing:
    """What goes into the index of a version."""

    version: Path
    config: IndexConfig
    contract: ModelContract
    queries: Vectors | None
    begin_step: BeginStep

    def is_other_index(self, described: dict[str, Any]) -> bool:
        """Whether an index was chosen by other wishes than there are now."""
        return (described["index_type"], described["memory_limit"]) != (
            self.config.index_type,
            self.config.memory_limit,
        )

    def write_anew(self, members: Ids, files: Sequence[VectorFile]) -> dict[str, Any]:
        """Write all vectors and the index; what the manifest says of the index."""
        write_shards(self.version, members, files, embedding_dim=self.contract.embedding_dim)
        return build_index(
            read_shards(self.version),
            config=self.config,
            folder=self.version,
            queries=self.queries,
            begin_step=self.begin_step,
        )

    def measure(self, described: dict[str, Any], *, deleted: Ids) -> dict[str, Any]:
        """Measure the index that the version shares with the one before; what the manifest says of it now."""
        search = VectorSearch.open(
            read_shards(self.version), folder=self.version, described=described, deleted=deleted
        )
        return retune_index(
            search, described=described, config=self.config, queries=self.queries, begin_step=self.begin_step
        )


def _check_index(base: Version, manifest: Manifest) -> None:
    """An index that is measured must be the one that was built."""
    for name in (INDEX_NAME, HELD_OUT_NAME):
        if name in manifest.files:
            check_file(base.folder, name, manifest, contents=True)


def _share(version: Path, base: Version, manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Link the base's vectors and index; what its manifest says of them, which must still be so."""
    shared = {
        name: described
        for name, described in manifest.files.items()
        if name.startswith(("vectors/", "ids/")) or name in (INDEX_NAME, HELD_OUT_NAME, MODEL_NAME)
    }
    for name in shared:
        check_file(base.folder, name, manifest, contents=False)
        if name != MODEL_NAME:
            link_file(base.folder / name, version / name)
    return shared


def _describe(
    catalog: CatalogWriter,
    contract: ModelContract,
    *,
    index: dict[str, Any],
    deleted: int,
    files: dict[str, dict[str, Any]],
) -> Manifest:
    reasons = catalog.skipped_by_reason()
    counts = {"indexed": catalog.count("indexed"), "duplicate": catalog.count("duplicate")}
    counts["skipped"] = sum(reasons.values())
    found = sum(counts.values())
    if catalog.count("pending"):
        raise GalleryDamagedError(printable_path(CATALOG_NAME), "some items were never settled")
    return Manifest(
        model_sha256=files[MODEL_NAME]["sha256"],
        preprocessing=contract.preprocess,
        embedding_dim=contract.embedding_dim,
        counts={"found": found, **counts, "skipped_by_reason": reasons, "deleted": deleted},
        next_id=catalog.next_id(),
        index=index,
        files=files,
    )
