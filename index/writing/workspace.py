"""Unfinished work of a gallery, `GALLERY/building/`: it survives a kill, and becomes a version."""

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from index.arrays import Ids
from index.catalog.reader import read_catalog
from index.catalog.writer import CatalogWriter, write_catalog
from index.durable import link_file, remove_durably, write_durably
from index.errors import CancelledError, GalleryDamagedError, GalleryError, GalleryMismatchError, RetrievalError
from index.faiss_library import import_faiss
from index.gallery.computed_by import describe_runtime, join_runtimes, require_same_output, usual_runtime_in
from index.limits import WRITER_WAIT_S
from index.markers import GALLERY_MARK, LOCK_NAME, is_part
from index.model.embedder import Embedder
from index.model.text_encoder import copy_text_files
from index.progress import no_progress, no_steps
from index.text import printable_path
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.vectors.shards import VectorSource, find_checkpoint
from index.vectors.stores import load_store, store_of
from index.versions.gallery_identity import FolderState, claim_gallery, find_damage, lock_gallery, require_own_folder
from index.versions.gallery_parts import (
    BUILDING,
    PLAN_NAME,
    describe_no_gallery,
    identify,
    make_part,
    read_plan,
    remove_part,
)
from index.versions.manifest import CATALOG_NAME, FORMAT_VERSION, MODEL_NAME, Manifest, Version, check_file
from index.versions.versions import find_version, highest_next_id, list_versions, read_current, remove_old_versions
from index.writing.build_config import BuildConfig, RunOptions

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
_BEFORE = "before.sqlite"


@contextmanager
def disk_errors_as_gallery_errors(
    gallery: Path, *, advice: str = "what is done is kept; remove the cause and run the same command again"
) -> Iterator[None]:
    """Turn disk errors into GalleryErrors."""
    try:
        yield
    except OSError as error:
        raise GalleryError(gallery, f"{error}; {advice}") from error


@contextmanager
def open_workspace(
    gallery: Path,
    *,
    embedder: Embedder | None = None,
    start: float | None = None,
    is_new: bool = False,
    undo: bool = False,
    **run: Unpack[RunOptions],
) -> "Iterator[Workspace]":
    """Lock a gallery and open its unfinished work; disk errors become GalleryErrors.

    Args:
        embedder: the gallery's model; None: read from the gallery.
        is_new: remove the gallery's folder where the first build fails before it has done anything.
        undo: as of `Workspace.opened`.
    """
    start = time.perf_counter() if start is None else start
    wait_s, begin_step = run.get("wait_s", WRITER_WAIT_S), run.get("begin_step", no_steps)
    import_faiss()
    if require_own_folder(gallery) is FolderState.DAMAGED:
        raise find_damage(gallery)
    with lock_gallery(gallery, wait_s=wait_s, begin_step=begin_step), disk_errors_as_gallery_errors(gallery):
        claim_gallery(gallery.resolve())
        if embedder is None:
            embedder = Embedder(find_model(gallery), threads=1, backend=usual_runtime_in(gallery))
        work = Workspace(gallery.resolve(), embedder=embedder, start=start, **run)
        work.open()
        try:
            with work.opened(undo=undo):
                yield work
        except RetrievalError:
            with suppress(OSError):
                if is_new and set(os.listdir(gallery)) <= {GALLERY_MARK, LOCK_NAME}:
                    for name in (GALLERY_MARK, LOCK_NAME):  # a process that waits for the lock makes both again
                        (gallery / name).unlink(missing_ok=True)
                    gallery.rmdir()
            raise


class Workspace:
    """The folder where a gallery's next version is made; used under the gallery's lock.

    Attributes:
        catalog: of the next version, open within `opened`.
        base: the current version, from which the next one starts; None for the first, a repair or a copy.
        kept_vectors: by output, vectors to publish with the new ones, without a base.
        kept_ids: (n,) int64 ids that never become duplicates, without a base.
        shards: a folder of shards with the outcome of every item, so that nothing is embedded.
        previous: the version that a rollback will use; None: the one before the published one.
    """

    catalog: CatalogWriter

    def __init__(
        self, gallery: Path, *, embedder: Embedder, start: float | None = None, **run: Unpack[RunOptions]
    ) -> None:
        self.gallery, self.embedder = gallery, embedder.with_outputs(*embedder.contract.widths)
        self.config = run.get("config") or BuildConfig()
        self.progress, self.begin_step = run.get("progress", no_progress), run.get("begin_step", no_steps)
        self.start = time.perf_counter() if start is None else start
        self.folder = gallery / BUILDING
        self.catalog_path = self.folder / CATALOG_NAME
        self.counts = dict.fromkeys(("new_images", "from_cache", "moved", "vanished", "removed"), 0)
        self.base: Version | None = None
        self.is_new = self._undo = False
        self.kept_vectors: Mapping[str, Sequence[VectorSource]] = {}
        self.kept_ids: Ids | None = None
        self.kept_runtime: dict[str, Any] | None = None
        self.made_runtime = describe_runtime(self.embedder)
        self.shards: Path | None = None
        self.previous: str | None = None
        self.published: str | None = None

    def open(self) -> None:
        """Continue unfinished work, or start from the current version; both must be of the same model."""
        self.base, found = read_current(self.gallery), read_plan(self.gallery)
        if self.base is None and list_versions(self.gallery) and (found is None or found["base"] is not None):
            raise GalleryDamagedError(self.gallery, "CURRENT, which names the version in use, is missing")
        if self.base is not None:
            manifest = Manifest.read(self.base)
            require_model(self.embedder, expected=manifest.model_sha256, gallery=self.gallery)
            require_same_output(manifest.runtime, self.embedder, gallery=self.gallery)
            self.kept_runtime = manifest.runtime
            for name in manifest.files:
                check_file(self.base.folder, name, manifest, contents=False)
        plan = self._plan(None if self.base is None else self.base.name)
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
            self.made_runtime = join_runtimes(found["runtime"], self.made_runtime)
        self._record(plan)

    def _record(self, plan: Mapping[str, Any]) -> None:
        recorded = {**plan, "runtime": self.made_runtime}
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
            detail = f"unfinished, and this command cannot continue it; run the same `retrieval index {command}` again"
            raise GalleryError(self.gallery, detail)
        self.is_new = True
        self.remove()
        make_part(self.gallery, BUILDING)
        (self.folder / CHECKPOINTS).mkdir()
        if self.base is None:
            shutil.copyfile(self.embedder.path, self.folder / MODEL_NAME)
            copy_text_files(self.embedder.path, self.folder / MODEL_NAME, self.embedder.contract)
            if rows is not None:
                shutil.copyfile(rows, self.catalog_path)
        else:
            manifest = Manifest.read(self.base)
            for name in manifest.files:
                if name == CATALOG_NAME or name.startswith("ids/"):  # damage must not be carried on
                    check_file(self.base.folder, name, manifest, contents=True)
            model = self.base.folder / MODEL_NAME
            for path in (model, *self.embedder.contract.text_files(model)):
                link_file(path, self.folder / path.name)
            shutil.copyfile(self.base.folder / CATALOG_NAME, self.catalog_path)
        with write_catalog(self.catalog_path) as catalog:
            catalog.prepare()
            catalog.raise_next_id(highest_next_id(self.gallery))  # also above ids of a version before a rollback
        self._record(plan)

    def open_without_base(
        self,
        base: str | None,
        *,
        rows: Path,
        kept: Mapping[str, Sequence[VectorSource]],
        runtime: dict[str, Any] | None,
    ) -> None:
        """Continue or start a repair or a copy, with the rows of an intact catalogue and `kept` vectors by output."""
        self.kept_vectors = kept
        with read_catalog(rows) as catalog:
            self.kept_ids = catalog.indexed_ids()
        if any(len(file.ids) for files in kept.values() for file in files):
            self.kept_runtime = runtime
        plan = {**self._plan(base), "repair": True}
        if _is_same_plan(read_plan(self.gallery), plan) and is_intact_work(self.folder):
            self._join_work(plan)
        else:
            self._start(plan, rows=rows)

    def find_lost(self) -> Ids:
        """(n,) int64 rising ids of indexed rows, in a repair, without a vector of some output."""
        held = [
            np.unique(np.concatenate([np.empty(0, np.int64), *(file.ids for file in files)]))
            for files in self.vector_files().values()
        ]
        indexed = self.catalog.indexed_ids()
        return np.setdiff1d(indexed, reduce(np.intersect1d, held), assume_unique=True)

    @contextmanager
    def opened(self, *, undo: bool = False) -> Iterator[None]:
        """Open the catalogue, and clean up after a publication; a cancellation, or a failure with `undo`, is undone."""
        self._undo, before = undo, None
        if not self.is_new:
            before, part = self.folder / _BEFORE, self.folder / f"{_BEFORE}.tmp"
            part.unlink(missing_ok=True)
            with closing(sqlite3.connect(self.catalog_path)) as source, closing(sqlite3.connect(part)) as copy:
                source.backup(copy)
            os.replace(part, before)
        try:
            with write_catalog(self.catalog_path) as self.catalog:
                yield
        except (RetrievalError, OSError) as error:
            if not (self._undo or isinstance(error, CancelledError)):
                raise
            if before is None:
                self.remove()
            elif before.exists():  # else the change has removed the work
                for end in ("-wal", "-shm"):
                    Path(f"{self.catalog_path}{end}").unlink(missing_ok=True)
                before.replace(self.catalog_path)
            raise
        if self.published is not None:
            self._clean_up(self.published)

    @contextmanager
    def change(self) -> Iterator[CatalogWriter]:
        """A transaction on the catalogue; where it fails, new work goes."""
        try:
            with self.catalog.transaction():
                yield self.catalog
                count, width = self.count_usable(), self.embedder.contract.embedding_dim
                config = AnnConfig.from_text(self.catalog.setting(INDEX_SETTING))
                kind = load_store(self.store.store)
                kind.check(self.store, base=self.base, count=count, width=width, config=config)
        except RetrievalError:
            self._undo |= self.is_new
            raise

    def count_usable(self) -> int:
        """The number of rows that are, or may become, images of the next version."""
        return self.catalog.count("indexed") + self.catalog.count("pending")

    @property
    def store(self) -> StoreConfig:
        return StoreConfig.from_text(self.catalog.setting(STORE_SETTING))

    def _clean_up(self, version: str) -> None:
        """Remove old versions and finished work; what cannot be removed is left to the next writer."""
        try:
            self.remove()
            remove_old_versions(self.gallery, current=version, previous=self.previous)
            manifest = Manifest.read(find_version(self.gallery))
            store_of(manifest).tidy(self.gallery, manifest)
        except (OSError, GalleryError) as error:
            shown = printable_path(self.gallery)
            logger.warning("%s: version %s is in use, but what is left over stays: %s", shown, version, error)

    def remove(self) -> None:
        """Remove the unfinished work; finished versions stay."""
        identity = identify(self.gallery)
        if is_part(self.folder, of=identity):
            remove_durably(self.folder / PLAN_NAME)  # first: without it the rest is not continued
            remove_part(self.folder, of=identity)

    def has_vectors(self) -> bool:
        return any((self.folder / CHECKPOINTS).glob("*.npy"))

    def vector_files(self) -> dict[str, list[VectorSource]]:
        """By output, the vectors to publish beside the base's; of an id in several files the last counts."""
        folder, start = self.folder / CHECKPOINTS, 0
        try:
            made = [
                find_checkpoint(folder / name, sha256=sha256) for name, sha256 in self.catalog.checkpoints().items()
            ]
        except GalleryDamagedError as error:
            raise self._damaged(error) from error
        files: dict[str, list[VectorSource]] = {}
        for output, width in self.embedder.contract.widths.items():
            columns = slice(start, start + width)
            own = [replace(file, columns=columns) for file in made]
            files[output] = [*self.kept_vectors.get(output, ()), *own]
            start += width
        return files


def require_model(embedder: Embedder, *, expected: str, gallery: Path) -> None:
    """Check that a model is the one of a gallery or its unfinished work."""
    if embedder.sha256 != expected:
        raise GalleryMismatchError(
            gallery,
            what="model (SHA-256)",
            expected=expected,
            seen=embedder.sha256,
            advice="build into another folder with --out",
        )


def _is_same_plan(found: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> bool:
    return found is not None and {**found, "runtime": None} == {**plan, "runtime": None}


def is_intact_work(folder: Path) -> bool:
    """Whether the rows and vectors of unfinished work are undamaged."""
    try:
        with write_catalog(folder / CATALOG_NAME) as catalog:
            catalog.check()
            for name, sha256 in catalog.checkpoints().items():
                find_checkpoint(folder / CHECKPOINTS / name, sha256=sha256)
    except GalleryError:
        return False
    return True


def find_model(gallery: Path) -> Path:
    current = read_current(gallery)
    folder = gallery / BUILDING if current is None else current.folder
    model = folder / MODEL_NAME
    if not model.is_file() or (current is None and read_plan(gallery) is None):
        raise GalleryError(gallery, describe_no_gallery(gallery))
    return model
