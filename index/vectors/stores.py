"""The stores of vectors there are: how each opens a version, writes one, and cleans up; a further one is a module."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from index.arrays import Ids
from index.vectors.ann_config import MILVUS, AnnConfig, StoreConfig
from index.vectors.shards import HeldVectors
from index.vectors.store import Published, VectorStore, WriterTask
from index.versions.manifest import Manifest, Version, part_folder


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
