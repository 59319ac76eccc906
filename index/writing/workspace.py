"""Unfinished work of a gallery, `GALLERY/building/`: it survives a kill, and becomes a version."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from index.arrays import Ids
from index.catalog.reader import read_catalog
from index.catalog.writer import CatalogWriter, write_catalog
from index.durable import hash_file, link_file, remove_durably, write_durably
from index.errors import GalleryDamagedError, GalleryError, GalleryMismatchError
from index.gallery.computed_by import describe_runtime, join_runtimes, require_same_output
from index.items import EmbeddedItem
from index.markers import PART_MARK, is_part
from index.model.embedder import Embedder
from index.outputs import COPY, SEMANTIC, UNTRAINED
from index.progress import no_progress, no_steps
from index.text import printable_path
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.vectors.shards import HeldVectors, VectorRows, find_checkpoint, write_checkpoint
from index.vectors.stores import Publication, Published, WriterTask, load_store, open_store
from index.versions.gallery_parts import (
    BUILDING,
    PLAN_NAME,
    announce,
    describe_no_gallery,
    find_announced,
    identify,
    make_part,
    read_plan,
    remove_own,
    remove_part,
)
from index.versions.manifest import (
    CATALOG_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    Version,
    check_file,
    describe_file,
    part_folder,
    part_start,
)
from index.versions.versions import (
    highest_next_id,
    latest_version,
    next_version,
    publish_version,
    read_current,
    set_current,
    versions_folder,
)
from index.writing.build_config import BuildConfig, RunOptions

_VERSION = "version"


class Workspace:
    """The folder where a gallery's next version is made; used under the gallery's lock.

    Attributes:
        embedder: giving all its outputs.
        base: the current version, from which the next one starts; None for the first.
        is_new: whether there was no unfinished work before.
        kept_vectors: by output, vectors to publish with the new ones, without a base.
        kept_ids: (n,) int64 ids that never become duplicates, without a base; None with a base.
        kept_runtime: the manifest's runtime of the base's or kept vectors.
        shards: a folder of shards with the outcome of every item, so that nothing is embedded.
        previous: the version that a repair leaves for a rollback; None: the one before the new one.
    """

    def __init__(
        self, gallery: Path, *, embedder: Embedder, start: float | None = None, **run: Unpack[RunOptions]
    ) -> None:
        self.gallery, self.embedder = gallery, embedder.giving(*embedder.contract.widths)
        self.config = run.get("config") or BuildConfig()
        self.progress, self.begin_step = run.get("progress", no_progress), run.get("begin_step", no_steps)
        self.start = time.perf_counter() if start is None else start
        self.folder = gallery / BUILDING
        self.catalog_path = self.folder / CATALOG_NAME
        self.base: Version | None = None
        self.is_new = False
        self.kept_vectors: Mapping[str, Sequence[HeldVectors]] = {}
        self.kept_ids: Ids | None = None
        self.kept_runtime: dict[str, Any] | None = None
        self.shards: Path | None = None
        self.previous: str | None = None
        self._remembered: dict[str, Any] = {}
        self._made_runtime = describe_runtime(self.embedder)

    def open(self) -> None:
        """Continue unfinished work, or start from the current version.

        Raises:
            GalleryMismatchError: the gallery, or its unfinished work, is of another model.
            GalleryDamagedError: a file of the current version is missing or has another size.
        """
        self.base = adopt_unpublished(self.gallery)
        if self.base is not None:
            manifest = Manifest.read(self.base)
            require_model(self.embedder, expected=manifest.model_sha256, gallery=self.gallery)
            require_same_output(manifest.runtime, self.embedder, gallery=self.gallery)
            self.kept_runtime = manifest.runtime
            for name in manifest.files:
                check_file(self.base.folder, name, manifest, contents=False)
        plan = self._plan(None if self.base is None else self.base.name)
        found = read_plan(self.gallery)
        if _is_same_plan(found, plan):
            try:
                with write_catalog(self.catalog_path) as catalog:
                    catalog.check()
            except GalleryDamagedError as error:
                raise self._damaged(error) from error
            self._join_work(plan)
            return
        if found is not None and self.has_vectors():
            model_sha256 = str(found["model_sha256"])
            if _is_same_plan({**found, "model_sha256": self.embedder.sha256}, plan):
                require_model(self.embedder, expected=model_sha256, gallery=self.gallery)
        self._start(plan)

    def _plan(self, base: str | None) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, "base": base, "model_sha256": self.embedder.sha256}

    def _join_work(self, plan: Mapping[str, Any]) -> None:
        """Check that new vectors may be mixed with those of the unfinished work, and record both runtimes."""
        found = read_plan(self.gallery) or {}
        if "runtime" in found and self.has_vectors():
            require_same_output(found["runtime"], self.embedder, gallery=self.gallery)
            self._made_runtime = join_runtimes(found["runtime"], self._made_runtime)
        self._record(plan)

    def _record(self, plan: Mapping[str, Any]) -> None:
        recorded = {**plan, "runtime": self._made_runtime}
        if read_plan(self.gallery) != recorded:
            write_durably(self.folder / PLAN_NAME, json.dumps(recorded, indent=2).encode())

    def _damaged(self, error: GalleryDamagedError) -> GalleryError:
        """The error of damaged unfinished work, with advice other than for a damaged version."""
        problem = f"the unfinished work is {error.problem.partition(';')[0]}"
        advice = "`retrieval index repair` throws it away, nothing published is lost; then run the command again"
        return GalleryError(error.path, f"{problem}; {advice}")

    def _start(self, plan: dict[str, Any], *, rows: Path | None = None) -> None:
        if self.base is None and self.embedder.path.is_relative_to(self.folder):
            command = "copy" if "repair" in (read_plan(self.gallery) or {}) else "build"
            detail = f"unfinished, and cannot be gone on with; run the same `retrieval index {command}` again"
            raise GalleryError(printable_path(str(self.gallery)), detail)
        self.is_new = True
        self.remove()
        make_part(self.gallery, BUILDING)
        (self.folder / "checkpoints").mkdir()
        if self.base is None:
            shutil.copyfile(self.embedder.path, self.folder / MODEL_NAME)
            if rows is not None:
                shutil.copyfile(rows, self.catalog_path)
        else:
            manifest = Manifest.read(self.base)
            for name in manifest.files:
                if name == CATALOG_NAME or name.startswith("ids/"):  # damage must not be carried on
                    check_file(self.base.folder, name, manifest, contents=True)
            link_file(self.base.folder / MODEL_NAME, self.folder / MODEL_NAME)
            shutil.copyfile(self.base.folder / CATALOG_NAME, self.catalog_path)
        with write_catalog(self.catalog_path) as catalog:
            catalog.prepare()
            catalog.raise_next_id(highest_next_id(self.gallery))  # also above ids of a version before a rollback
        self._record(plan)

    def open_without_base(
        self,
        base: str | None,
        *,
        rows: Path | None,
        kept: Mapping[str, Sequence[HeldVectors]],
        runtime: dict[str, Any] | None,
    ) -> None:
        """Continue or start a version without a sound base: a repair, or a copy.

        Args:
            base: the name of the damaged version.
            rows: an intact catalogue; None: an empty one.
            kept: the vectors, by output.
            runtime: that computed them.
        """
        self.kept_vectors, self.kept_ids = kept, np.empty(0, np.int64)
        if rows is not None:
            with read_catalog(rows) as catalog:
                self.kept_ids = np.array(catalog.indexed_ids(), dtype=np.int64)
        if any(len(file.ids) for files in kept.values() for file in files):
            self.kept_runtime = runtime
        plan = {**self._plan(base), "repair": "vectors" if rows else "everything"}
        if _is_same_plan(read_plan(self.gallery), plan) and is_intact_work(self.folder):
            self._join_work(plan)
        else:
            self._start(plan, rows=rows)

    def find_lost(self, catalog: CatalogWriter) -> Ids:
        """(n,) int64 rising ids of indexed rows, in a repair, without a vector of some output."""
        held = [
            np.unique(np.concatenate([np.empty(0, np.int64), *(file.ids for file in files)]))
            for files in self.vector_files(catalog).values()
        ]
        indexed = np.array(catalog.indexed_ids(), dtype=np.int64)
        return np.setdiff1d(indexed, reduce(np.intersect1d, held), assume_unique=True)

    def restart(self) -> None:
        self.remove()
        self._made_runtime = describe_runtime(self.embedder)
        self.open()

    def remove(self) -> None:
        """Remove the unfinished work; finished versions stay."""
        identity = identify(self.gallery)
        if is_part(self.folder, of=identity):
            remove_durably(self.folder / PLAN_NAME)  # first: without it the rest is not continued
            remove_part(self.folder, of=identity)

    def has_vectors(self) -> bool:
        return any((self.folder / "checkpoints").glob("*.npy"))

    def save_checkpoint(self, catalog: CatalogWriter, items: list[EmbeddedItem]) -> int:
        """Write the vectors of some items, then settle their rows in one transaction; the number of vectors."""
        usable = [(item.id, item.vector) for item in sorted(items, key=attrgetter("id")) if item.vector is not None]
        checkpoints = dict[str, str]()
        if usable:
            name = f"{len(catalog.checkpoints()):09d}.npy"
            rows = VectorRows(
                np.array([key for key, _ in usable], dtype=np.int64), np.stack([vector for _, vector in usable])
            )
            checkpoints[name] = write_checkpoint(self.folder / "checkpoints" / name, rows)
        catalog.record_outcomes(items, checkpoints=checkpoints)
        return len(usable)

    def vector_files(self, catalog: CatalogWriter) -> dict[str, list[HeldVectors]]:
        """By output, the vectors to publish beside the base's; of an id in several files the last counts."""
        folder, start = self.folder / "checkpoints", 0
        try:
            made = [find_checkpoint(folder / name, sha256=sha256) for name, sha256 in catalog.checkpoints().items()]
        except GalleryDamagedError as error:
            raise self._damaged(error) from error
        files: dict[str, list[HeldVectors]] = {}
        for output, width in self.embedder.contract.widths.items():
            columns = slice(start, start + width)
            own = [replace(file, columns=columns) for file in made]
            files[output] = [*self.kept_vectors.get(output, ()), *own]
            start += width
        return files

    def has_changed(self, catalog: CatalogWriter) -> bool:
        return self.base is None or not catalog.same_as(self.base.folder / CATALOG_NAME)

    def write(self, catalog: CatalogWriter, *, how: Publication) -> None:
        """Write a complete version of the settled rows, for `publish`."""
        version = self.folder / _VERSION
        version.mkdir(exist_ok=True)
        if others := remove_own(version):
            shown = printable_path(str(version / others[0]))
            raise GalleryError(shown, "not this gallery's, and in the way; move it elsewhere and run this again")
        (version / PART_MARK).unlink(missing_ok=True)  # of an interrupted publication
        if hash_file(self.folder / MODEL_NAME) != self.embedder.sha256:
            raise GalleryError(printable_path(str(self.embedder.path)), "the model file changed during the build")
        link_file(self.folder / MODEL_NAME, version / MODEL_NAME)
        published = self._write_vectors(catalog, version, how)
        files = {
            f"{part_start(output)}{name}": file
            for output, part in published.items()
            for name, file in part.files.items()
        }
        if files and self.base is not None:
            manifest = Manifest.read(self.base)
            check_file(self.base.folder, MODEL_NAME, manifest, contents=False)
            files[MODEL_NAME] = manifest.files[MODEL_NAME]
        catalog.write_finished(version / CATALOG_NAME, compact=how.compact)
        for path in sorted(path for path in version.rglob("*") if path.is_file()):
            name = path.relative_to(version).as_posix()
            files[name] = files.get(name) or describe_file(path)
        finished = self._describe(catalog, published, files)
        (version / MANIFEST_NAME).write_text(finished.to_json(), encoding="utf-8")
        self._remembered = catalog.remembered()

    def _write_vectors(self, catalog: CatalogWriter, version: Path, how: Publication) -> dict[str, Published]:
        """Write the vectors of every output; their entries in the manifest."""
        config = AnnConfig.from_text(catalog.setting(INDEX_SETTING))
        store = StoreConfig.from_text(catalog.setting(STORE_SETTING))
        members = np.array(catalog.indexed_ids(), dtype=np.int64)
        before = members[:0]
        if self.base is not None:
            before = open_store(self.base.folder, Manifest.read(self.base), SEMANTIC).ids
        new = np.setdiff1d(members, before, assume_unique=True)
        deleted = np.setdiff1d(before, members, assume_unique=True)
        made, published = self.vector_files(catalog), dict[str, Published]()
        for output, width in self.embedder.contract.widths.items():
            task = WriterTask(
                gallery=self.gallery,
                folder=part_folder(version, output),
                store=store,
                config=config if output != UNTRAINED else AnnConfig(index_type="flat"),  # nobody searches them
                width=width,
                made=made[output],
                how=how if output == SEMANTIC else replace(how, queries=None),  # given queries are semantic
                model_sha256=self.embedder.sha256,
                begin_step=self.begin_step,
                output=output,
            )
            published[output] = load_store(store.store).publish(task, new, deleted, self.base)
        return published

    def _describe(
        self, catalog: CatalogWriter, published: Mapping[str, Published], files: dict[str, dict[str, Any]]
    ) -> Manifest:
        contract, reasons = self.embedder.contract, catalog.skipped_by_reason()
        if catalog.count("pending"):
            raise GalleryDamagedError(printable_path(CATALOG_NAME), "some items were never settled")
        counts = {"indexed": catalog.count("indexed"), "duplicate": catalog.count("duplicate")}
        counts["skipped"] = sum(reasons.values())
        parts = {
            output: {"embedding_dim": contract.widths[output], "index": part.index, "deleted": part.deleted}
            for output, part in published.items()
        }
        found, deleted, runtime = sum(counts.values()), published[SEMANTIC].deleted, self.kept_runtime
        if catalog.checkpoints():  # something was embedded
            runtime = join_runtimes(runtime, self._made_runtime)
        return Manifest(
            model_sha256=files[MODEL_NAME]["sha256"],
            preprocessing=contract.preprocess,
            embedding_dim=contract.embedding_dim,
            counts={"found": found, **counts, "skipped_by_reason": reasons, "deleted": deleted},
            next_id=catalog.next_id(),
            index=published[SEMANTIC].index,
            files=files,
            copy={**parts[COPY], "threshold": contract.copy_threshold} if COPY in parts else None,
            untrained=parts.get(UNTRAINED),
            store=StoreConfig.from_text(catalog.setting(STORE_SETTING)).describe(),
            runtime=runtime,
        )

    def publish(self) -> Path:
        """Make the written version the current one; its folder."""
        name = next_version(self.gallery)
        announce(self.gallery, name)
        return publish_version(self.gallery, self.folder / _VERSION, name=name, remembered=self._remembered)


def require_model(embedder: Embedder, *, expected: str, gallery: Path) -> None:
    """Check that a model is the one of a gallery or its unfinished work."""
    if embedder.sha256 != expected:
        raise GalleryMismatchError(
            printable_path(str(gallery)),
            what="model (SHA-256)",
            expected=expected,
            seen=embedder.sha256,
            advice="build into another folder with --out",
        )


def _is_same_plan(found: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> bool:
    """Whether two plans are equal but for their runtimes."""
    return found is not None and {**found, "runtime": None} == {**plan, "runtime": None}


def is_intact_work(folder: Path) -> bool:
    """Whether the rows and vectors of unfinished work are undamaged."""
    try:
        with write_catalog(folder / CATALOG_NAME) as catalog:
            catalog.check()
            for name, sha256 in catalog.checkpoints().items():
                find_checkpoint(folder / "checkpoints" / name, sha256=sha256)
    except GalleryError:
        return False
    return True


def adopt_unpublished(gallery: Path) -> Version | None:
    """The current version; an announced one, of a writer killed in its last step, becomes current."""
    current, announced = read_current(gallery), find_announced(gallery, identity=identify(gallery))
    if announced is not None and int(announced) > int(current.name if current else 0):
        set_current(gallery, versions_folder(gallery) / announced)
        return read_current(gallery)
    if current is None and latest_version(gallery) is not None:
        shown = printable_path(str(gallery))
        raise GalleryDamagedError(shown, "CURRENT, which names the version in use, is missing")
    return current


def find_model(gallery: Path) -> Path:
    current = read_current(gallery)
    folder = gallery / BUILDING if current is None else current.folder
    model = folder / MODEL_NAME
    if not model.is_file() or (current is None and read_plan(gallery) is None):
        raise GalleryError(printable_path(str(gallery)), describe_no_gallery(gallery))
    return model
