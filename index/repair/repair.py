"""Repairing a damaged gallery: what is sound of any version is kept, what is lost is made again from the sources."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.catalog.reader import read_catalog
from index.catalog.writer import CatalogWriter, write_catalog
from index.durable import write_durably
from index.errors import DAMAGE_ADVICE, GalleryError, InputError
from index.faiss_library import import_faiss
from index.gallery.computed_by import require_same_output
from index.gallery.salvage import (
    SalvagedVersion,
    find_members,
    first_free_id,
    is_mark_sound,
    sound_vectors,
    survey_versions,
)
from index.gallery.verify import verify_gallery
from index.marks import GALLERY_MARK
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.repair.kept_model import find_model, find_runtime
from index.repair.kept_store import describe_move, find_store, keep_store
from index.repair.repair_rows import embed_lost, fill_catalog, find_new, list_unreachable
from index.repair.salvaged_rows import SalvagedRows, read_salvaged, remembered_rows
from index.sources.registry import find_source
from index.text import printable_path, valid_text
from index.vectors.shards import HeldVectors, find_checkpoint
from index.vectors.store import Publication
from index.vectors.stores import store_of
from index.versions.gallery_identity import Standing, require_own_folder, restore_identity
from index.versions.gallery_lock import lock_gallery
from index.versions.gallery_parts import remove_part
from index.versions.manifest import CATALOG_NAME, FORMAT_VERSION, MANIFEST_NAME, Manifest
from index.versions.versions import find_version, mark_version, read_current, set_current
from index.versions.work_plan import BUILDING, read_plan
from index.writing.build_config import BuildConfig
from index.writing.settling import settle
from index.writing.workspace import Workspace

_LISTED = 20
_NOTES = {  # by where the rows come from
    "sources": "the catalogue is lost in every version: all images have new ids, above all old ones",
    "rows": "no catalogue is sound: the rows that could be read were compared with the files, other images are new",
}
_OLDER_NOTE = (
    "the rows are those of {}: labels and metadata are as the sources say, what was added since has new ids"
)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was damaged and what became of it.

    Attributes:
        version: the sound version that is current now.
        damaged: what was wrong, in words; none where all was well.
        catalog: where the rows come from: `current`, `version N`, `rows` that could be read of a damaged one, or
            `sources`, where every image has a new id.
        indexed: images of the version.
        kept: of them, those whose vectors were sound.
        embedded: those embedded again under the ids they had.
        new_images: those that no row was left of; they have ids that were never given before.
        gone: images that no sound vector and no file is left of.
        gone_images: the first of these, by path.
    """

    gallery: str
    version: str | None
    changed: bool
    damaged: list[str]
    catalog: str = "current"
    indexed: int = 0
    kept: int = 0
    embedded: int = 0
    new_images: int = 0
    gone: int = 0
    gone_images: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The document that the command prints with `--json`."""
        return asdict(self)


def repair_gallery(
    gallery: Path,
    *,
    model_path: Path | None = None,
    sources: Sequence[str] = (),
    drop_missing: bool = False,
    uri: str | None = None,
    config: BuildConfig | None = None,
    progress: Progress = no_progress,
    begin_step: BeginStep = no_steps,
) -> RepairReport:
    """Repair a gallery; its images keep their ids.

    Rows, vectors and the model are taken from every version in which their checksums hold. Vectors that are lost are
    made again from the sources; images stay members without their files as long as their vectors are sound. Where no
    catalogue is sound, the rows that can be read are compared with the files. Uploads and decisions are not touched.
    Of vectors in Milvus those are kept whose collection was made with the gallery's model; all go into a new one.

    Args:
        model_path: the model that it was built with, where no version has it any more.
        sources: where the images come from, if nothing else tells.
        drop_missing: let go of images whose vectors are lost and whose source is not there now.
        uri: where the Milvus server of the gallery answers now; None: where it did.

    Raises:
        InputError: a source that is needed is not there, nothing tells what the sources were, or the gallery has no
            server.
        GalleryError: no gallery, another process writes it, no sound model is left, its server does not answer, or the
            disk is full.
        GalleryMismatchError: `model_path` is another model, or the runtime gives other vectors than are kept.
    """
    start, shown = time.perf_counter(), printable_path(str(gallery))
    require_own_folder(gallery)
    import_faiss()
    with lock_gallery(gallery, begin_step=begin_step):
        try:
            repair = _Repair(
                gallery.resolve(), model_path=model_path, given=sources, drop_missing=drop_missing, uri=uri
            )
            return repair.run(
                config=config or BuildConfig(), progress=progress, begin_step=begin_step, start=start
            )
        except OSError as error:
            advice = "what is done is kept; mend the cause and run the same command again"
            raise GalleryError(shown, f"{error}; {advice}") from error


class _Repair:
    """One repair of a gallery, under its lock."""

    def __init__(
        self,
        gallery: Path,
        *,
        model_path: Path | None,
        given: Sequence[str],
        drop_missing: bool,
        uri: str | None,
    ) -> None:
        self.gallery, self.drop_missing, self.uri = gallery, drop_missing, uri
        self.model_path, self.given = model_path, given
        self.damaged: list[str] = []
        self.notes: list[str] = []

    def run(self, *, config: BuildConfig, progress: Progress, begin_step: BeginStep, start: float) -> RepairReport:
        if require_own_folder(self.gallery) is Standing.DAMAGED:
            self.damaged.append(f"{printable_path(str(self.gallery))}: its mark or CURRENT is damaged or missing")
        self.identity, changed = restore_identity(self.gallery)
        if changed:
            self.damaged.append(
                f"{printable_path(str(self.gallery / GALLERY_MARK))}: another identity than its parts'"
            )
        self.versions = survey_versions(self.gallery, identity=self.identity, progress=begin_step("Checking"))
        if not self.versions:
            return replace(self._finish_unbuilt(), seconds=time.perf_counter() - start)
        target = self._find_target()
        versions = (target, *self.versions)
        self.store = find_store(versions, uri=self.uri)
        move = describe_move(versions, self.store)
        if self._restore(target) and move is None:
            self._clear_damaged_work()
            opened = read_current(self.gallery)
            assert opened is not None
            assert target.manifest is not None
            count = int(target.manifest.counts["indexed"])
            report = RepairReport(
                valid_text(str(self.gallery)),
                opened.name,
                bool(self.damaged),
                self.damaged,
                indexed=count,
                kept=count,
            )
        else:
            self.notes += [] if move is None else [move]
            report = self._rebuild(target, config=config, progress=progress, begin_step=begin_step)
        return replace(report, notes=self.notes, seconds=time.perf_counter() - start)

    def _find_target(self) -> SalvagedVersion:
        """The version that is to be current: the one that is, or else the newest that was not left."""
        named = next((version for version in self.versions if version.is_current), None)
        return named or next((v for v in self.versions if not v.is_left), self.versions[0])

    def _restore(self, target: SalvagedVersion) -> bool:
        """Bring back small files that have a copy; whether the version is sound then."""
        self.damaged += target.problems
        path = target.folder / MANIFEST_NAME
        if target.manifest is None:
            return False
        if not _has_bytes(path, target.manifest_text):
            write_durably(path, target.manifest_text)
        if target.sound != set(target.manifest.files):
            return False
        digest = hashlib.sha256(target.manifest_text).hexdigest()
        try:
            current = read_current(self.gallery)
        except GalleryError:
            current = None
        if current is None or (current.name, current.manifest_sha256) != (target.folder.name, digest):
            self.damaged.append(f"{printable_path(str(self.gallery / 'CURRENT'))}: damaged or missing")
            set_current(self.gallery, target.folder)
        if not is_mark_sound(target.folder, of=self.identity):
            with read_catalog(target.folder / CATALOG_NAME) as catalog:
                mark_version(target.folder, of=self.identity, remembered=catalog.remembered())
        problems = verify_gallery(self.gallery, sample=0).problems
        self.damaged += [problem.removesuffix(DAMAGE_ADVICE) for problem in problems]
        return not problems

    def _finish_unbuilt(self) -> RepairReport:
        """Nothing was ever published: what is damaged goes, and the build begins anew."""
        self._clear_damaged_work()
        self.notes.append("no version was ever finished; run `retrieval index build` again")
        return RepairReport(
            valid_text(str(self.gallery)), None, bool(self.damaged), self.damaged, notes=self.notes
        )

    def _clear_damaged_work(self) -> None:
        """Throw unfinished work away that cannot be gone on with."""
        folder, plan = self.gallery / BUILDING, read_plan(self.gallery)
        if not folder.is_dir() or (plan is not None and "repair" not in plan and _is_sound_work(folder)):
            return
        if remove_part(folder, of=self.identity) and plan is not None:
            self.damaged.append(f"{printable_path(str(folder))}: unfinished work that cannot be gone on with")
            if "repair" not in plan:
                self.notes.append("unfinished work was thrown away; run the command that was stopped again")

    def _choose_rows(self, target: SalvagedVersion) -> tuple[str, Path | SalvagedRows]:
        """Where the rows come from: a sound catalogue as a path, or what else is left."""
        if CATALOG_NAME in target.sound and target.manifest is not None:
            return "current", target.folder / CATALOG_NAME
        older = next((v for v in self.versions if CATALOG_NAME in v.sound and v.manifest is not None), None)
        until = first_free_id(self.gallery, self.versions) + (1 << 16)
        rows = read_salvaged(target.folder / CATALOG_NAME, until=until)
        if rows.images:
            if older is not None:
                rows.add_missing(
                    read_salvaged(older.folder / CATALOG_NAME, until=until), members=find_members(target)
                )
            return "rows", rows
        if older is not None:
            return f"version {older.folder.name}", older.folder / CATALOG_NAME
        for version in self.versions:
            rows = read_salvaged(version.folder / CATALOG_NAME, until=until)
            if rows.images:
                return "rows", rows
        return "sources", self._name_sources(target)

    def _name_sources(self, target: SalvagedVersion) -> SalvagedRows:
        remembered = next((v.remembered for v in (target, *self.versions) if v.remembered.get("sources")), {})
        rows = remembered_rows(remembered)
        if self.given:
            rows.set_sources([find_source(text) for text in self.given])
        if not rows.sources:
            raise InputError(
                f"{printable_path(str(self.gallery))}: its catalogue is lost in every version, and nothing tells what "
                "it was built from; run this again with --source for each folder, archive, list or table"
            )
        return rows

    def _rebuild(
        self, target: SalvagedVersion, *, config: BuildConfig, progress: Progress, begin_step: BeginStep
    ) -> RepairReport:
        versions = (target, *self.versions)
        embedder = find_model(self.gallery, versions, given=self.model_path)
        origin, rows = self._choose_rows(target)
        widths = embedder.contract.widths.items()
        files = {
            name: sound_vectors(
                self.versions, output=name, width=width, model_sha256=embedder.sha256, uri=self.uri or "",
                begin_step=begin_step,
            )
            for name, width in widths
        }  # fmt: skip
        stored = reduce(np.intersect1d, map(_list_ids, files.values()))  # of an image all its vectors, or none
        least = first_free_id(self.gallery, self.versions)
        work = Workspace(self.gallery, embedder=embedder)
        work.kept_vectors, work.kept_ids = files, stored
        if origin == "sources":  # nothing tells whose the stored vectors are
            work.kept_vectors, work.kept_ids, stored = {}, np.empty(0, np.int64), np.empty(0, np.int64)
        work.kept_runtime = find_runtime(versions) if len(stored) else None
        plan = {
            "format_version": FORMAT_VERSION,
            "base": target.folder.name,
            "model_sha256": embedder.sha256,
            "repair": origin,
            "store": None if self.store is None else self.store.describe(),
            "kept": len(stored),  # a server may have fewer when this is gone on with
        }
        work.open_repair(
            plan,
            model=embedder.path,
            fill=lambda catalog: fill_catalog(
                catalog, rows, stored=stored, members=find_members(target), least_id=least
            ),
        )
        with write_catalog(work.catalog_path) as catalog:
            keep_store(catalog, self.store)
            gone = self._mend_rows(
                work, catalog, stored, origin=origin, config=config, progress=progress, begin_step=begin_step
            )
            ids = np.array(catalog.indexed_ids(), dtype=np.int64)
            if not len(ids):
                work.remove()
                raise InputError(
                    f"{printable_path(str(self.gallery))}: nothing of it can be saved: no vector is sound, and none of "
                    "its sources has a usable image now; put the sources back and run this again"
                )
            writing = begin_step("Writing")
            writing(0, 0)
            work.write(catalog, how=Publication(), begin_step=begin_step)
            writing(1, 1)
            version = work.publish()
        work.remove()
        self._tidy()
        kept, new = len(np.intersect1d(ids, stored)), int((ids >= least).sum())
        if origin != "current":
            self.notes.append(_NOTES.get(origin, _OLDER_NOTE.format(origin)))
        return RepairReport(
            gallery=valid_text(str(self.gallery)), version=version.name, changed=True, damaged=self.damaged,
            catalog=origin, indexed=len(ids), kept=kept, embedded=len(ids) - kept - new, new_images=new,
            gone=len(gone), gone_images=[valid_text(path) for path in gone[:_LISTED]],
        )  # fmt: skip

    def _tidy(self) -> None:
        manifest = Manifest.read(find_version(self.gallery))
        try:
            store_of(manifest).tidy(self.gallery, manifest)
        except GalleryError as error:
            self.notes.append(f"the gallery is mended, but what is left over stays: {error}")

    def _mend_rows(
        self,
        work: Workspace,
        catalog: CatalogWriter,
        stored: Ids,
        *,
        origin: str,
        config: BuildConfig,
        progress: Progress,
        begin_step: BeginStep,
    ) -> list[str]:
        unreachable = list_unreachable(catalog, stored=stored)
        if unreachable and not self.drop_missing:
            listed = ", ".join(f"{printable_path(place)} ({count:,} images)" for place, count in unreachable)
            raise InputError(
                f"{printable_path(str(self.gallery))}: vectors are lost, and the sources to make them again from are "
                f"not there: {listed}; mount or put them back and run this again, or let these images go with "
                "--drop-missing"
            )
        if len(stored) and (origin != "current" or catalog.count("pending")):  # so something may be embedded
            require_same_output(work.kept_runtime, work.embedder, gallery=self.gallery)
        gone = embed_lost(
            work, catalog, stored=stored, drop_missing=self.drop_missing, config=config, progress=progress
        )
        if origin != "current":
            self.notes += find_new(catalog, progress=begin_step("Scanning"))
        settle(work, catalog, config=config, keep_vanished=True, progress=progress, begin_step=begin_step)
        return gone


def _has_bytes(path: Path, expected: bytes) -> bool:
    try:
        return path.read_bytes() == expected
    except OSError:
        return False


def _is_sound_work(folder: Path) -> bool:
    try:
        with write_catalog(folder / CATALOG_NAME) as catalog:
            catalog.check()
            for saved in catalog.checkpoints():
                find_checkpoint(folder / "checkpoints" / saved.name, sha256=saved.sha256)
    except GalleryError:
        return False
    return True


def _list_ids(files: Sequence[HeldVectors]) -> Ids:
    """(n,) int64, rising."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *(file.ids for file in files)]))
