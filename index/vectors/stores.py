"""Stores of vectors: what each must do, how it opens a version, writes one, and cleans up; a further one is a module.

A gallery asks its store; only the store knows in how many pieces the vectors lie, which ANN index finds them, and what
of it is no member any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids, Vectors
from index.outputs import KIND
from index.progress import BeginStep, no_steps
from index.vectors.ann_config import MILVUS, AnnConfig, StoreConfig
from index.vectors.shards import HeldVectors
from index.versions.manifest import Manifest, Version, part_folder


class Among(Protocol):
    """Some members that a search may find, chosen by the store that is to search them."""

    @property
    def ids(self) -> Ids:
        """(n,) int64, rising."""

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """(m,) bool: which of (m,) int64 ids of members are among them."""


class VectorStore(Protocol):
    """The vectors of one version: (D,) float32 of norm 1 by int64 id. It never changes, and is safe among threads."""

    @property
    def ids(self) -> Ids:
        """(N,) int64 of the members, rising."""

    def search(
        self,
        queries: Vectors,
        *,
        k: int,
        among: Any = None,
        exclude_ids: Ids | None = None,
        effort: Mapping[str, int] | None = None,
        threads: int = 1,
    ) -> tuple[Floats, Ids]:
        """The k members nearest to each of (Q, D) float32 unit queries, best first.

        Args:
            queries: of the stored width.
            k: at least 1.
            among: only these are found; what `choose` of the same store gave. None: any member.
            exclude_ids: (Q,) int64, of one member that each query does not find; `NO_ID` for none.
            effort: how hard to look, as the ANN index counts it; None: as hard as was measured to be enough.

        Returns:
            (Q, k) float32 cosines, summed in float64, and (Q, k) int64 ids, of equal cosines the smaller first;
            `NO_ID` with -inf where fewer may be found.
        """

    def search_above(
        self, queries: Vectors, *, min_score: float, among: Any = None, exclude_ids: Ids | None = None
    ) -> list[tuple[Floats, Ids]]:
        """For each query all members at least so similar, found exactly; in the order of `search`."""

    def choose(self, ids: Ids) -> Among:
        """Those members that are among (n,) int64 ids, to search them more than once."""

    def gather(self, ids: Ids) -> Vectors:
        """The (n, D) float32 vectors of (n,) int64 ids of members."""

    def scan(self) -> Iterator[tuple[Ids, Vectors]]:
        """All members in the order of their ids, some at a time, with their vectors."""

    def count_beside(self) -> int:
        """How many of its vectors lie beside the ANN index."""


@dataclass(frozen=True, slots=True)
class Publication:
    """How a version is written.

    Attributes:
        compact: everything anew; else only what changed, as long as that is little.
        tune: the ANN index is measured again.
        queries: (n, D) float32 unit vectors to measure it with, in place of those that it has not seen.
    """

    compact: bool = False
    tune: bool = False
    queries: Vectors | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What a manifest is to say of vectors that were written.

    Attributes:
        index: of the ANN index: its kind, how good it is, and what it costs.
        deleted: vectors that are kept though they are of no member.
        files: name, size and SHA-256 of those that the base had already, checked.
    """

    index: dict[str, Any]
    deleted: int
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriterTask:
    """What is to be written, and where to.

    Attributes:
        gallery: whose version it is.
        folder: of the vectors in the version, see `part_folder`.
        width: numbers of a vector.
        made: where the vectors of new members are; of an id the last one counts.
        model_sha256: of the model that made them.
        output: whose vectors they are.
    """

    gallery: Path
    folder: Path
    store: StoreConfig
    config: AnnConfig
    width: int
    made: Sequence[HeldVectors]
    how: Publication
    model_sha256: str
    begin_step: BeginStep = no_steps
    output: str = KIND


class StoreKind(Protocol):
    """The functions of a store's module; folder and manifest are those of a version's part, see `Manifest.part`."""

    def open_vectors(self, folder: Path, manifest: Manifest) -> VectorStore:
        """The vectors of a version, open for searching. Raises GalleryError where they are damaged or out of reach."""

    def hold(self, folder: Path, manifest: Manifest) -> Sequence[HeldVectors]:
        """All vectors of a version, members or not, read when they are needed."""

    def hold_intact(self, folder: Path, manifest: Manifest, names: Collection[str]) -> Sequence[HeldVectors]:
        """Those vectors of a damaged version that can be trusted, by the names of its intact files.

        Raises GalleryError where that cannot be known now.
        """

    def publish(self, task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
        """Let a new version hold what a base holds, with some new members and without the deleted ones.

        Args:
            new: (n,) int64 rising ids, whose vectors the task has.
            deleted: (m,) int64 rising ids of members of the base.
            base: a finished version, which stays as it is; None: there is nothing yet.

        Raises:
            GalleryError: a vector is missing, or what the base holds is not what it was.
            OSError: the disk is full or fails.
        """

    def check(
        self, store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig
    ) -> None:
        """See that so many vectors can be written beside those of a base, and have an index.

        Raises InputError where they can have none, GalleryError where they cannot be written.
        """

    def tidy(self, gallery: Path, manifest: Manifest) -> None:
        """Away with what no version has any more, and let others find the one of a manifest, which is current now.

        Raises GalleryError where it cannot be.
        """


def load_store(name: str) -> StoreKind:
    """A store by its name in `StoreConfig`; only that of a server loads the server's client."""
    if name == MILVUS:
        from index.vectors.milvus import store

        return store
    from index.vectors import files

    return files


def store_of(manifest: Manifest) -> StoreKind:
    """Where the vectors of a version are."""
    return load_store("" if manifest.store is None else manifest.store["type"])


def open_store(version: Path, manifest: Manifest, output: str) -> VectorStore:
    """The vectors of an output of a version."""
    return store_of(manifest).open_vectors(part_folder(version, output), manifest.part(output))


def hold_vectors(version: Version | None, output: str) -> Sequence[HeldVectors]:
    """All vectors of an output that a version has, members or not; none without a version."""
    if version is None:
        return ()
    manifest = Manifest.read(version)
    return store_of(manifest).hold(part_folder(version.folder, output), manifest.part(output))
