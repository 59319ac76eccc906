"""The work in progress of a build, `GALLERY/building/`: what is done survives a kill, and ends as a version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from index.catalog import Catalog, FileResult, write_catalog
from index.embedder import Embedder
from index.errors import GalleryError, GalleryMismatchError
from index.flat_index import build_index, measure_latency_ms, write_index
from index.images import printable_path
from index.pipeline import EmbeddedFile
from index.vectors import (
    VectorFile,
    VectorRows,
    find_checkpoint,
    find_shards,
    read_shards,
    write_checkpoint,
    write_shards,
)
from index.versions import (
    CATALOG_NAME,
    FORMAT_VERSION,
    INDEX_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    check_file,
    describe_files,
    latest_version,
    next_version,
    publish_version,
    read_current,
    read_json,
    set_current,
    versions_folder,
    write_durably,
)


class Workspace:
    """The folder where a gallery's next version is made; used under the gallery's lock.

    Attributes:
        base: the current version, which the next one starts from; None for the first.
        moved: whether `source` may be another folder than the gallery's: its photos are there now.
        catalog_path: the rows of the work in progress.
    """

    def __init__(self, gallery: Path, *, source: Path, embedder: Embedder, moved: bool = False) -> None:
        self.gallery, self.source, self.embedder, self.moved = gallery, source, embedder, moved
        self.folder = gallery / "building"
        self.catalog_path = self.folder / CATALOG_NAME
        self.base: str | None = None

    def open(self) -> None:
        """Continue the work in progress, or start it from the current version where there is one.

        Raises:
            GalleryMismatchError: the gallery, or its work in progress, is of another model or folder.
            GalleryDamagedError: a file of the current version is missing or has another size.
        """
        self.base = self._adopt_unpublished()
        if self.base is not None:
            manifest = Manifest.read(self._version(self.base))
            self._check_origin(model_sha256=manifest.model_sha256, source_folder=manifest.source_folder)
            for name in manifest.files:
                check_file(self._version(self.base), name, manifest, contents=False)
        plan = {
            "format_version": FORMAT_VERSION,
            "base": self.base,
            "model_sha256": self.embedder.sha256,
            "source_folder": str(self.source),
        }
        found = read_json(self.folder / "plan.json")
        if found == plan:
            return
        worth_keeping = any((self.folder / "checkpoints").glob("*.npy"))
        if found is not None and found.get("base") == self.base and worth_keeping:
            self._check_origin(
                model_sha256=str(found.get("model_sha256")), source_folder=str(found.get("source_folder"))
            )
            if {**found, "source_folder": plan["source_folder"]} == plan:  # moved while in progress
                self._write_plan(plan)
                return
        self.remove()
        (self.folder / "checkpoints").mkdir(parents=True)
        if self.base is not None:
            shutil.copyfile(self._version(self.base) / CATALOG_NAME, self.catalog_path)
        with write_catalog(self.catalog_path) as catalog:
            catalog.prepare()
        self._write_plan(plan)

    def remove(self) -> None:
        """Remove the work in progress; finished versions stay."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def save_checkpoint(self, catalog: Catalog, files: list[EmbeddedFile]) -> int:
        """Settle some files: first their vectors, then, in one transaction, their rows; the number of vectors."""
        usable = [(file.id, file.vector) for file in files if file.vector is not None]
        name = f"{files[0].id:012d}.npy" if usable else None
        if name is not None:
            ids = np.array([key for key, _ in usable], dtype=np.int64)
            vectors = np.stack([vector for _, vector in usable])
            write_checkpoint(self.folder / "checkpoints" / name, VectorRows(ids, vectors))
        catalog.record_results(map(_result, files), checkpoint=name)
        return len(usable)

    def has_changed(self, catalog: Catalog) -> bool:
        """Whether the rows, or the place of the photos, differ from those of the current version."""
        if self.base is None:
            return True
        base = self._version(self.base)
        moved = Manifest.read(base).source_folder != str(self.source)
        return moved or not catalog.same_as(base / CATALOG_NAME)

    def publish(self, catalog: Catalog, *, labels_source: str) -> str:
        """Make a complete version of the settled rows and let it be the current one; its name."""
        name, version = next_version(self.gallery), self.folder / "version"
        if version.exists():
            shutil.rmtree(version)
        version.mkdir()
        dim = self.embedder.contract.embedding_dim
        ids = np.array(catalog.indexed_ids(), dtype=np.int64)
        write_shards(version, ids, self._vector_files(catalog), embedding_dim=dim)
        shards = read_shards(version)
        index = build_index(shards, embedding_dim=dim)
        write_index(index, version / INDEX_NAME)
        catalog.write_finished(version / CATALOG_NAME)
        shutil.copyfile(self.embedder.path, version / MODEL_NAME)
        manifest = self._describe(
            version,
            catalog,
            labels_source=labels_source,
            latency_ms=measure_latency_ms(index, shards[0].vectors),
        )
        if manifest.files[MODEL_NAME]["sha256"] != self.embedder.sha256:
            raise GalleryError(printable_path(str(self.embedder.path)), "the model file changed during the build")
        (version / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        publish_version(self.gallery, version, name=name)
        return name

    def _write_plan(self, plan: dict[str, Any]) -> None:
        write_durably(self.folder / "plan.json", json.dumps(plan, indent=2).encode())

    def _version(self, name: str) -> Path:
        return versions_folder(self.gallery) / name

    def _adopt_unpublished(self) -> str | None:
        """The current version; a complete newer one, left by a build killed at its very last step, becomes it."""
        current, latest = read_current(self.gallery), latest_version(self.gallery)
        if latest is not None and self.folder.exists() and int(latest) > int(current or 0):
            set_current(self.gallery, latest)
            return latest
        return current

    def _check_origin(self, *, model_sha256: str, source_folder: str) -> None:
        other = "build into another folder with --out"
        for what, expected, seen, allowed, advice in (
            ("model (SHA-256)", model_sha256, self.embedder.sha256, False, other),
            (
                "source folder",
                source_folder,
                str(self.source),
                self.moved,
                f"{other}, or add --moved where it is the same folder in its new place",
            ),
        ):
            if expected != seen and not allowed:
                raise GalleryMismatchError(
                    printable_path(str(self.gallery)),
                    what=what,
                    expected=printable_path(expected),
                    seen=printable_path(seen),
                    advice=advice,
                )

    def _vector_files(self, catalog: Catalog) -> list[VectorFile]:
        files = [find_checkpoint(self.folder / "checkpoints" / name) for name in catalog.checkpoints()]
        if self.base is None:
            return files
        base = self._version(self.base)
        manifest = Manifest.read(base)
        for name in manifest.files:
            if name.startswith(("vectors/", "ids/")):  # damage must not be carried on under a new checksum
                check_file(base, name, manifest, contents=True)
        return [*find_shards(base), *files]

    def _describe(self, version: Path, catalog: Catalog, *, labels_source: str, latency_ms: float) -> Manifest:
        reasons = catalog.skipped_by_reason()
        return Manifest(
            model_sha256=self.embedder.sha256,
            preprocessing=self.embedder.contract.preprocess,
            embedding_dim=self.embedder.contract.embedding_dim,
            counts={
                "indexed": catalog.count("indexed"),
                "skipped": sum(reasons.values()),
                "skipped_by_reason": reasons,
            },
            next_id=catalog.next_id(),
            index={
                "type": "Flat",
                "parameters": {},
                "recall_at_10": 1.0,
                "recall_note": "exact by construction, not measured",
                "latency_ms_median": latency_ms,
            },
            source_folder=str(self.source),
            labels_source=labels_source,
            files=describe_files(version),
        )


def _result(file: EmbeddedFile) -> FileResult:
    if file.problem is None:
        return FileResult(file.id, sha256=file.sha256)
    return FileResult(file.id, sha256=file.sha256, reason=file.problem.reason, detail=file.problem.detail)
