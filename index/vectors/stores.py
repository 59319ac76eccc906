"""The stores of vectors there are: how each opens a version, writes one, and cleans up; a further one is an entry here.

What writes, and what loads a client of a server, is loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from index.arrays import Ids
from index.vectors.ann_config import FILES, MILVUS, AnnConfig, StoreConfig
from index.vectors.files import FileStore
from index.vectors.shards import HeldVectors, VectorFile, find_shards, read_ids
from index.vectors.store import Published, VectorStore, WriterTask
from index.versions.manifest import Manifest, Version, part_folder


class StoreKind(Protocol):
    """One way to keep vectors; folder and manifest are those of a version's part, see `Manifest.part`."""

    def open(self, folder: Path, manifest: Manifest) -> VectorStore:
        """The vectors of a version, open for searching. Raises GalleryError where they are damaged or out of reach."""

    def hold(self, folder: Path, manifest: Manifest) -> Sequence[HeldVectors]:
        """All vectors of a version, members or not, read when they are needed."""

    def hold_intact(self, folder: Path, manifest: Manifest, names: Collection[str]) -> Sequence[HeldVectors]:
        """Those vectors of a damaged version that can be trusted, by the names of its intact files.

        Raises GalleryError where that cannot be known now.
        """

    def count_beside(self, folder: Path, manifest: Manifest) -> int:
        """How many vectors lie beside the ANN index, without a look at them."""

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


class _Files:
    def open(self, folder: Path, manifest: Manifest) -> VectorStore:
        return FileStore(folder, manifest)

    def hold(self, folder: Path, manifest: Manifest) -> Sequence[HeldVectors]:
        return list(find_shards(folder))

    def hold_intact(self, folder: Path, manifest: Manifest, names: Collection[str]) -> Sequence[HeldVectors]:
        shards = sorted(name for name in names if name.startswith("vectors/"))
        ids = {name: name.replace("vectors/", "ids/") for name in shards}
        return [VectorFile(read_ids(folder / ids[name]), folder / name) for name in shards if ids[name] in names]

    def count_beside(self, folder: Path, manifest: Manifest) -> int:
        return FileStore(folder, manifest).describe().beside

    def publish(self, task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
        from index.vectors.file_writer import publish_files

        return publish_files(task, new, deleted, base)

    def check(
        self, store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig
    ) -> None:
        from index.vectors.ann_building import choose_ann

        choose_ann(count=count, width=width, config=config, reduced_width=1)  # how far it can be is not known yet

    def tidy(self, gallery: Path, manifest: Manifest) -> None:
        """Versions are removed with all that is theirs."""


class _Milvus:
    def open(self, folder: Path, manifest: Manifest) -> VectorStore:
        from index.vectors.milvus.store import MilvusStore

        return MilvusStore(folder, manifest)

    def hold(self, folder: Path, manifest: Manifest) -> Sequence[HeldVectors]:
        from index.vectors.milvus.store import hold_rows

        return [hold_rows(folder, manifest)]

    def hold_intact(self, folder: Path, manifest: Manifest, names: Collection[str]) -> Sequence[HeldVectors]:
        from index.vectors.milvus.store import IDS_NAME, hold_intact_rows

        return hold_intact_rows(folder, manifest) if IDS_NAME in names else []

    def count_beside(self, folder: Path, manifest: Manifest) -> int:
        return 0

    def publish(self, task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
        from index.vectors.milvus.writer import MilvusWriter

        return MilvusWriter(task).publish(new, deleted, base)

    def check(
        self, store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig
    ) -> None:
        from index.vectors.milvus.collection import Server
        from index.vectors.milvus.tuning import choose_kind

        choose_kind(count, config)
        Server(store.uri)
        if base is not None:
            manifest = Manifest.read(base)
            for output in manifest.outputs:
                open_store(base.folder, manifest, output)

    def tidy(self, gallery: Path, manifest: Manifest) -> None:
        from index.vectors.milvus.writer import tidy

        tidy(gallery, manifest)


STORES: Mapping[str, StoreKind] = {FILES: _Files(), MILVUS: _Milvus()}


def store_of(manifest: Manifest) -> StoreKind:
    """Where the vectors of a version are."""
    return STORES[FILES if manifest.store is None else manifest.store["type"]]


def open_store(version: Path, manifest: Manifest, output: str) -> VectorStore:
    """The vectors of an output of a version."""
    return store_of(manifest).open(part_folder(version, output), manifest.part(output))


def hold_vectors(version: Version | None, output: str) -> Sequence[HeldVectors]:
    """All vectors of an output that a version has, members or not; none without a version."""
    if version is None:
        return ()
    manifest = Manifest.read(version)
    return store_of(manifest).hold(part_folder(version.folder, output), manifest.part(output))
