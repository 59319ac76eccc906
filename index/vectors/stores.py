"""Stores of vectors: the interfaces `VectorStore` and `StoreKind`; a new store is one module."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from index.arrays import Floats, Ids, Mask, Vectors
from index.outputs import SEMANTIC
from index.progress import BeginStep, no_steps
from index.vectors.ann_config import MILVUS, AnnConfig, StoreConfig
from index.vectors.shards import VectorSource
from index.versions.manifest import Manifest, Version, part_folder


class IdSubset(Protocol):
    """A subset of members for a search, made by `VectorStore.subset`."""

    @property
    def ids(self) -> Ids:
        """(n,) int64, ascending."""

    def has(self, ids: Ids) -> Mask:
        """(m,) bool: which of (m,) int64 ids of members are in it."""


class VectorStore(Protocol):
    """The immutable vectors of one version: (D,) float32 of norm 1 by int64 id; safe among threads."""

    @property
    def ids(self) -> Ids:
        """(N,) int64 of the members, ascending."""

    def search(self, queries: Vectors, *, k: int, among: Any = None, threads: int = 1) -> tuple[Floats, Ids]:
        """The k members nearest to each of (Q, D) float32 unit queries, best first, ties by smaller id.

        `among` is a subset of the same store's `subset`. Returns (Q, k) float32 cosines, summed in float64, and (Q, k)
        int64 ids; -inf and `NO_ID` where there are fewer.
        """

    def search_above(self, queries: Vectors, *, min_score: float, among: Any = None) -> list[tuple[Floats, Ids]]:
        """For each query all members with at least this score, found exactly; in the order of `search`."""

    def subset(self, ids: Ids) -> IdSubset:
        """The members among (n,) int64 ids."""

    def gather(self, ids: Ids) -> Vectors:
        """The (n, D) float32 vectors of (n,) int64 ids of members."""

    def scan(self) -> Iterator[tuple[Ids, Vectors]]:
        """All members in id order, in blocks of ids and vectors."""

    def count_unindexed(self) -> int:
        """The number of vectors that the ANN index lacks."""


@dataclass(frozen=True, slots=True)
class Published:
    """The manifest's entries for written vectors: ANN index, count of deleted ones, and files shared with the base."""

    index: dict[str, Any]
    deleted: int
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriterTask:
    """Vectors of one output to be written to a part of a version's folder.

    `made` has the vectors of new members; of an id in several the last one's. `rewrite` writes all vectors anew.
    """

    gallery: Path
    folder: Path
    store: StoreConfig
    config: AnnConfig
    width: int
    made: Sequence[VectorSource]
    model_sha256: str
    rewrite: bool = False
    begin_step: BeginStep = no_steps
    output: str = SEMANTIC


class StoreKind(Protocol):
    """The functions of a store's module; folder and manifest are of a version's part, see `Manifest.part`."""

    def open_vectors(self, folder: Path, manifest: Manifest) -> VectorStore:
        """Open the vectors of a version for searching."""

    def hold(self, folder: Path, manifest: Manifest) -> Sequence[VectorSource]:
        """All vectors of a version, members or not, read on demand."""

    def hold_intact(self, folder: Path, manifest: Manifest, names: Collection[str]) -> Sequence[VectorSource]:
        """The intact vectors of a damaged version, by the names of its intact files."""

    def publish(self, task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
        """Write a version: the vectors of the base, plus new members, without the deleted ones; ids rise."""

    def check(self, store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig) -> None:
        """Check, before anything is embedded, that so many vectors can be written and indexed."""

    def tidy(self, gallery: Path, manifest: Manifest) -> None:
        """Remove vectors that no version has any more; the manifest is the current version's."""


def load_store(name: str) -> StoreKind:
    """A store by its name in `StoreConfig`."""
    if name == MILVUS:
        from index.vectors.milvus import store

        return store
    from index.vectors import files

    return files


def store_of(manifest: Manifest) -> StoreKind:
    return load_store("" if manifest.store is None else manifest.store["type"])


def open_store(version: Path, manifest: Manifest, output: str) -> VectorStore:
    """The vectors of an output of a version."""
    return store_of(manifest).open_vectors(part_folder(version, output), manifest.part(output))


def hold_vectors(version: Version | None, output: str) -> Sequence[VectorSource]:
    """All vectors of an output of a version, members or not; none without a version."""
    if version is None:
        return ()
    manifest = Manifest.read(version)
    return store_of(manifest).hold(part_folder(version.folder, output), manifest.part(output))
