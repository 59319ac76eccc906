"""A finished version of a gallery: what changed is written, what did not is shared with the version before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.catalog_writer import CatalogWriter
from index.errors import GalleryDamagedError
from index.exact import Ids
from index.flat_index import build_index, measure_latency_ms, write_index
from index.images import printable_path
from index.model_file import ModelContract
from index.vectors import VectorFile, find_shards, read_shards, write_array, write_shards
from index.versions import (
    CATALOG_NAME,
    DELETED_NAME,
    INDEX_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    Version,
    check_file,
    describe_file,
    link_file,
)

# How much of a version may lie beside its index file, in rows and as a share, before the next one is written anew.
_LOOSE_ROWS = 1024
_LOOSE_SHARE = 0.1
_LOOSE_SHARDS = 32


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
    compact: bool,
) -> Manifest:
    """Write every file of a version into an empty folder.

    Args:
        version: the folder.
        catalog: rows that are all settled.
        base: the version that it starts from.
        checkpoints: the vectors made since.
        model: the model file, which every version shares.
        contract: of the model.
        compact: write everything anew; else only what changed, as long as that is little.

    Raises:
        GalleryDamagedError: a file of the base, or a checkpoint, is not what it was.
    """
    for folder in ("vectors", "ids"):
        (version / folder).mkdir()
    link_file(model, version / MODEL_NAME)
    manifest = None if base is None else Manifest.read(base)
    members = np.array(catalog.indexed_ids(), dtype=np.int64)
    files: dict[str, dict[str, Any]] = {}
    if base is None or manifest is None:
        index, deleted = _write_anew(version, members, checkpoints, contract=contract), 0
    else:
        stored = list(find_shards(base.folder))
        change = _compare(members, stored)
        if compact or not _is_small(change, stored, indexed_shards=manifest.index["shards"]):
            _check_vectors(base, manifest)
            index, deleted = _write_anew(version, members, [*stored, *checkpoints], contract=contract), 0
        else:
            files = _share(version, base, manifest)
            write_shards(version, change.new, checkpoints, embedding_dim=contract.embedding_dim, first=len(stored))
            if len(change.deleted):
                write_array(version / DELETED_NAME, change.deleted)
            index, deleted = manifest.index, len(change.deleted)
    catalog.write_finished(version / CATALOG_NAME, compact=compact)
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


def _is_small(change: _Change, stored: Sequence[VectorFile], *, indexed_shards: int) -> bool:
    """Whether the members can be the base's vectors with a little beside them: ids must rise from shard to shard."""
    last = max(int(file.ids[-1]) for file in stored)
    indexed = sum(len(file.ids) for file in stored[:indexed_shards])
    added = sum(len(file.ids) for file in stored[indexed_shards:]) + len(change.new)
    room = max(_LOOSE_ROWS, int(_LOOSE_SHARE * indexed))
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


def _write_anew(
    version: Path, members: Ids, files: Sequence[VectorFile], *, contract: ModelContract
) -> dict[str, Any]:
    """Write all vectors and the index; what the manifest says of the index."""
    write_shards(version, members, files, embedding_dim=contract.embedding_dim)
    shards = read_shards(version)
    index = build_index(shards, embedding_dim=contract.embedding_dim)
    write_index(index, version / INDEX_NAME)
    return {
        "type": "Flat",
        "parameters": {},
        "shards": len(shards),
        "recall_at_10": 1.0,
        "recall_note": "exact by construction, not measured",
        "latency_ms_median": measure_latency_ms(index, shards[0].vectors),
    }


def _share(version: Path, base: Version, manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Link the base's vectors and index; what its manifest says of them, which must still be so."""
    shared = {
        name: described
        for name, described in manifest.files.items()
        if name.startswith(("vectors/", "ids/")) or name in (INDEX_NAME, MODEL_NAME)
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
