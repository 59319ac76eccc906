"""The store of vectors that is a folder of files: `.npy` shards, an ANN index of most of them, and deleted ids."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids, Vectors
from index.errors import GalleryDamagedError
from index.text import printable_path
from index.vectors.search import VectorSearch
from index.vectors.shards import gather_rows, read_ids, read_shards
from index.vectors.store import Among, StoreFacts
from index.vectors.stored_rows import RowSet
from index.versions.manifest import (
    DELETED_NAME,
    HELD_OUT_NAME,
    INDEX_NAME,
    Manifest,
    check_file,
)

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Some members, as stored rows."""

    rows: RowSet
    stored_ids: Ids

    @property
    def ids(self) -> Ids:
        """(n,) int64, rising."""
        chosen: Ids = self.stored_ids[self.rows.positions]
        return chosen

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """(m,) bool: which of (m,) int64 ids of members are among them."""
        chosen: npt.NDArray[np.bool_] = self.rows.mask[np.searchsorted(self.stored_ids, ids)]
        return chosen


class FileStore:
    """The `VectorStore` of a version folder. The ANN index is checked and opened when the first search needs it.

    Attributes:
        ids: (N,) int64 of the members, rising.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Map the shards of a version.

        Raises:
            GalleryError: a file is missing or damaged, or there is more or less than the manifest says.
        """
        self._folder, self._manifest = folder, manifest
        self._shards = read_shards(folder)
        self._deleted = read_deleted(folder, manifest)
        stored = np.concatenate([rows.ids for rows in self._shards])
        self.ids: Ids = np.setdiff1d(stored, self._deleted, assume_unique=True)
        self._check()
        self._lock = threading.Lock()
        self._opened: VectorSearch | None = None

    def _check(self) -> None:
        counts, dim = self._manifest.counts, self._manifest.embedding_dim
        expected = counts.get("indexed"), counts.get("deleted")
        widths = {rows.vectors.shape[1:] for rows in self._shards}
        rising = all((np.diff(rows.ids) > 0).all() for rows in self._shards)
        if expected != (len(self.ids), len(self._deleted)) or widths != {(dim,)} or not rising:
            seen = f"{len(self.ids)} vectors of shapes {sorted(widths)} and {len(self._deleted)} deleted"
            problem = (
                f"damaged: {seen}, expected {expected[0]} of width {dim} in rising id order, {expected[1]} deleted"
            )
            raise GalleryDamagedError(printable_path(str(self._folder)), problem)

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

    def search(
        self,
        queries: Vectors,
        *,
        k: int,
        among: Among | None = None,
        exclude_ids: Ids | None = None,
        effort: Mapping[str, int] | None = None,
        threads: int = 1,
    ) -> tuple[Floats, Ids]:
        """As `VectorStore.search`. Raises GalleryError where the ANN index is damaged."""
        return self._search.search(
            queries, k=k, allowed=_find_rows(among), exclude_ids=exclude_ids, parameters=effort, threads=threads
        )

    def search_above(
        self, queries: Vectors, *, min_score: float, among: Among | None = None, exclude_ids: Ids | None = None
    ) -> list[tuple[Floats, Ids]]:
        """As `VectorStore.search_above`. Raises GalleryError where the ANN index is damaged."""
        return self._search.search_above(
            queries, min_score=min_score, allowed=_find_rows(among), exclude_ids=exclude_ids
        )

    def choose(self, ids: Ids) -> ChosenRows:
        """As `VectorStore.choose`. Raises GalleryError where the ANN index is damaged."""
        return ChosenRows(self._search.keep(ids), self._search.stored.ids)

    def gather(self, ids: Ids) -> Vectors:
        """As `VectorStore.gather`."""
        return gather_rows(ids, self._shards, embedding_dim=self._manifest.embedding_dim)

    def scan(self) -> Iterator[tuple[Ids, Vectors]]:
        """As `VectorStore.scan`; read from front to back."""
        for shard in self._shards:
            for start in range(0, len(shard.ids), _ROWS_AT_ONCE):
                part = slice(start, start + _ROWS_AT_ONCE)
                ids, vectors = shard.ids[part], shard.vectors[part]
                is_member = np.isin(ids, self._deleted, assume_unique=True, invert=True)
                if is_member.any():
                    yield ids[is_member], vectors[is_member]

    def describe(self) -> StoreFacts:
        """As `VectorStore.describe`."""
        beside = sum(len(rows.ids) for rows in self._shards[self._manifest.index["shards"] :])
        return StoreFacts(len(self.ids), self._manifest.embedding_dim, beside, len(self._deleted))


def _find_rows(among: Among | None) -> RowSet | None:
    if among is None:
        return None
    assert isinstance(among, ChosenRows), "chosen by another store"
    return among.rows


def read_deleted(folder: Path, manifest: Manifest) -> Ids:
    """(n,) int64 ids of stored vectors of a version that are of no member."""
    return read_ids(folder / DELETED_NAME) if DELETED_NAME in manifest.files else np.empty(0, dtype=np.int64)


def is_shared(name: str) -> bool:
    """Whether a file of a version holds vectors or their ANN index, which the next version may hold too."""
    return name.startswith(("vectors/", "ids/")) or name in (INDEX_NAME, HELD_OUT_NAME)
