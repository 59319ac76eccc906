"""The file store: `.npy` shards of vectors, an ANN index of most of them, and deleted ids; versions share files."""

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.durable import link_file
from index.errors import GalleryDamagedError
from index.text import printable_path
from index.vectors.ann_building import build_ann_index, choose_ann
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.vectors.kinds import KINDS
from index.vectors.search import VectorSearch
from index.vectors.shards import (
    VectorFile,
    VectorSource,
    find_shards,
    gather_rows,
    read_ids,
    read_shards,
    write_array,
    write_shards,
)
from index.vectors.stored_rows import RowSet
from index.vectors.stores import Published, WriterTask
from index.versions.manifest import DELETED_NAME, INDEX_NAME, Manifest, Version, check_file, part_folder

_ROWS_AT_ONCE = 4096
# Limits of what lies beside the ANN index, which every search scans; above them a version is written anew.
_LOOSE_ROWS = 1024
_LOOSE_SHARDS = 32


class FileStore:
    """The `VectorStore` of a version folder; the first search checks and opens the ANN index."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._shards = read_shards(folder)
        self._deleted = read_deleted(folder, manifest)
        stored = np.concatenate([rows.ids for rows in self._shards])
        self.ids: Ids = np.setdiff1d(stored, self._deleted, assume_unique=True)
        counts, dim = manifest.counts, manifest.embedding_dim
        expected = counts.get("indexed"), counts.get("deleted")
        widths = {rows.vectors.shape[1:] for rows in self._shards}
        ascending = all((np.diff(rows.ids) > 0).all() for rows in self._shards)
        if expected != (len(self.ids), len(self._deleted)) or widths != {(dim,)} or not ascending:
            seen = f"{len(self.ids)} vectors of shapes {sorted(widths)} and {len(self._deleted)} deleted"
            problem = (
                f"damaged: {seen}, expected {expected[0]} of width {dim} in ascending id order, {expected[1]} deleted"
            )
            raise GalleryDamagedError(printable_path(folder), problem)
        self._lock = threading.Lock()
        self._opened: VectorSearch | None = None

    @property
    def _search(self) -> VectorSearch:
        with self._lock:
            if self._opened is None:
                if INDEX_NAME in self._manifest.files:
                    check_file(self._folder, INDEX_NAME, self._manifest, contents=True)
                self._opened = VectorSearch.open(
                    self._shards, folder=self._folder, described=self._manifest.index, deleted=self._deleted
                )
            return self._opened

    def search(self, queries: Vectors, **options: Any) -> tuple[Floats, Ids]:
        return self._search.search(queries, **options)

    def search_above(self, queries: Vectors, **options: Any) -> list[tuple[Floats, Ids]]:
        return self._search.search_above(queries, **options)

    def subset(self, ids: Ids) -> RowSet:
        return self._search.subset(ids)

    def gather(self, ids: Ids) -> Vectors:
        return gather_rows(ids, self._shards, embedding_dim=self._manifest.embedding_dim)

    def scan(self) -> Iterator[tuple[Ids, Vectors]]:
        for shard in self._shards:
            for start in range(0, len(shard.ids), _ROWS_AT_ONCE):
                part = slice(start, start + _ROWS_AT_ONCE)
                ids, vectors = shard.ids[part], shard.vectors[part]
                is_member = np.isin(ids, self._deleted, assume_unique=True, invert=True)
                if is_member.any():
                    yield ids[is_member], vectors[is_member]

    def count_unindexed(self) -> int:
        return sum(len(rows.ids) for rows in self._shards[self._manifest.index["shards"] :])


open_vectors = FileStore  # as `StoreKind` has it


def hold(folder: Path, manifest: Manifest) -> Sequence[VectorSource]:
    return list(find_shards(folder))


def hold_intact(folder: Path, manifest: Manifest, names: Collection[str]) -> Sequence[VectorSource]:
    """Intact vectors (`StoreKind.hold_intact`): shards whose ids are intact too."""
    shards = sorted(name for name in names if name.startswith("vectors/"))
    ids = {name: name.replace("vectors/", "ids/") for name in shards}
    return [VectorFile(read_ids(folder / ids[name]), folder / name) for name in shards if ids[name] in names]


def check(store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig) -> None:
    """Check before a build (`StoreKind.check`): an index must fit into memory, at the smallest possible width."""
    choose_ann(count=count, width=width, config=config, reduced_width=1)


def tidy(gallery: Path, manifest: Manifest) -> None:
    """Clean-up (`StoreKind.tidy`): nothing to do, because versions are removed with their files."""


def read_deleted(folder: Path, manifest: Manifest) -> Ids:
    """(n,) int64 ids of stored vectors that are not members."""
    return read_ids(folder / DELETED_NAME) if DELETED_NAME in manifest.files else np.empty(0, dtype=np.int64)


def publish(task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
    """Publish a version (`StoreKind.publish`): few changes go beside the base's files, more rewrite all."""
    for name in ("vectors", "ids"):
        (task.folder / name).mkdir(parents=True)
    if base is None:
        return _write_anew(task, new, task.made)
    manifest, home = Manifest.read(base).part(task.output), part_folder(base.folder, task.output)
    stored = list(find_shards(home))
    held = np.sort(np.concatenate([file.ids for file in stored]))
    gone = np.setdiff1d(np.union1d(read_deleted(home, manifest), deleted), new)
    fresh = np.setdiff1d(new, held, assume_unique=True)  # a deleted one that comes back is still stored
    index, indexed_shards = manifest.index, manifest.index["shards"]
    indexed, beside = (
        sum(len(file.ids) for file in files) for files in (stored[:indexed_shards], stored[indexed_shards:])
    )
    room = max(_LOOSE_ROWS, int(KINDS[index["type"]].loose_share * indexed))
    small = (
        (not len(fresh) or int(fresh[0]) > int(held[-1]))  # ids must rise from shard to shard
        and beside + len(fresh) <= room
        and len(gone) <= room
        and len(stored) - indexed_shards < _LOOSE_SHARDS
    )
    is_other = any(index[name] != value for name, value in asdict(task.config).items())
    if task.rewrite or not small or is_other:
        for name in manifest.files:
            if name.startswith(("vectors/", "ids/")):  # damage must not get a new checksum
                check_file(home, name, manifest, contents=True)
        members = np.setdiff1d(np.union1d(held, fresh), gone, assume_unique=True)
        return _write_anew(task, members, [*stored, *task.made])
    shared = ("vectors/", "ids/", INDEX_NAME)
    files = {name: described for name, described in manifest.files.items() if name.startswith(shared)}
    for name in files:
        check_file(home, name, manifest, contents=False)
        link_file(home / name, task.folder / name)
    write_shards(task.folder, fresh, task.made, embedding_dim=task.width, first=len(stored))
    if len(gone):
        write_array(task.folder / DELETED_NAME, gone)
    return Published(index, len(gone), files)


def _write_anew(task: WriterTask, members: Ids, files: Sequence[VectorSource]) -> Published:
    write_shards(task.folder, members, files, embedding_dim=task.width)
    index = build_ann_index(
        read_shards(task.folder), config=task.config, folder=task.folder, begin_step=task.begin_step
    )
    return Published(index, 0)
