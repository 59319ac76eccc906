"""Repair and rollback of a gallery: its versions are checked byte by byte for one that can be used or rebuilt."""

import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from index.catalog.reader import read_catalog
from index.catalog.scans import record_scan
from index.catalog.writer import CatalogWriter
from index.durable import write_durably
from index.errors import DAMAGE_ADVICE, GalleryDamagedError, GalleryError, InputError, ModelFileError
from index.faiss_library import import_faiss
from index.gallery.computed_by import usual_runtime_of
from index.limits import LOCK_WAIT_S
from index.markers import GALLERY_MARK, PART_MARK, read_part
from index.model.builtin import BUILTIN_MODEL
from index.model.checksum import read_model_file
from index.model.embedder import Embedder
from index.progress import Progress, no_progress, no_steps
from index.sources.registry import find_source
from index.text import printable_path, valid_text
from index.vectors.ann_config import MILVUS, STORE_SETTING, StoreConfig
from index.vectors.shards import VectorSource
from index.vectors.stores import Publication, open_store, store_of
from index.versions.annotations import added_folder
from index.versions.gallery_identity import (
    FolderState,
    claim_gallery,
    lock_gallery,
    require_own_folder,
    restore_identity,
)
from index.versions.gallery_parts import BUILDING, find_announced, read_plan, remove_part
from index.versions.manifest import (
    CATALOG_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    OtherFormatError,
    Version,
    check_file,
    part_folder,
    part_start,
)
from index.versions.versions import list_versions, mark_version, read_current, set_current
from index.writing.build_config import RunOptions
from index.writing.pending import embed_pending
from index.writing.publishing import publish
from index.writing.scanning import find_assigned, scan_sources
from index.writing.workspace import Workspace, is_intact_work, naming_trouble, require_model

logger = logging.getLogger(__name__)

USED, REBUILT, BUILT = "used", "rebuilt", "built again"


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """A version of a gallery, and its intact files.

    Attributes:
        manifest: from its file or the copy in its mark; None where both are damaged.
        manifest_text: its bytes.
        intact: names of files with the manifest's size and SHA-256.
        is_whole: whether all files are intact, and the store has the vectors.
        problems: damage in words; a whole version may lack its mark, or the file of its manifest.
    """

    folder: Path
    manifest: Manifest | None
    manifest_text: bytes
    intact: frozenset[str]
    is_whole: bool
    problems: Sequence[str]

    @property
    def indexed(self) -> int:
        """The number of images."""
        return 0 if self.manifest is None else int(self.manifest.counts["indexed"])

    def hold(self, output: str) -> Sequence[VectorSource]:
        """The intact vectors of an output."""
        assert self.manifest is not None
        start = part_start(output)
        names = {name.removeprefix(start) for name in self.intact if name.startswith(start)}
        return store_of(self.manifest).hold_intact(part_folder(self.folder, output), self.manifest.part(output), names)


def find_current(gallery: Path) -> Version | None:
    """The version of CURRENT; None where CURRENT is missing or damaged."""
    with suppress(GalleryError):
        return read_current(gallery)
    return None


def list_own_versions(gallery: Path, *, identity: str, current: Version | None) -> list[Path]:
    """The version folders with a gallery's identity, and the one that CURRENT names; newest first."""
    return [
        folder
        for folder in list_versions(gallery)
        if (current and folder == current.folder) or (read_part(folder) or {}).get("gallery") == identity
    ]


def check_version(
    folder: Path, *, identity: str, current: Version | None, uri: str | None = None, progress: Progress = no_progress
) -> CheckedVersion:
    """Compare every file of a version with its manifest.

    Args:
        uri: the new address of the Milvus server; None: the recorded one.
    """
    part, path = read_part(folder) or {}, folder / MANIFEST_NAME
    recorded = {part.get("manifest_sha256"), current.manifest_sha256 if current and current.folder == folder else None}
    copy = part.get("manifest")
    texts = [path.read_bytes() if path.is_file() else b""]
    texts += [copy.encode("utf-8", "surrogatepass")] if isinstance(copy, str) else []
    text = next((text for text in texts if hashlib.sha256(text).hexdigest() in recorded), b"")
    manifest, problems = None, []
    try:
        manifest = Manifest.parse(text)
    except OtherFormatError as error:
        raise GalleryError(printable_path(str(path)), str(error)) from error
    except (ValueError, InputError):
        pass
    if manifest is None or text != texts[0]:
        problems.append(f"{printable_path(str(path))}: damaged or missing")
    if part.get("gallery") != identity or (text and copy != text.decode("utf-8", "surrogateescape")):
        problems.append(f"{printable_path(str(folder / PART_MARK))}: damaged or missing")
    if manifest is None:
        return CheckedVersion(folder, None, b"", frozenset(), False, problems)
    intact = set()
    for done, name in enumerate(manifest.files, start=1):
        try:
            check_file(folder, name, manifest, contents=True)
            intact.add(name)
        except GalleryError as error:
            problems.append(str(error).removesuffix(DAMAGE_ADVICE))
        progress(done, len(manifest.files))
    is_whole = len(intact) == len(manifest.files)
    if uri is not None:
        if manifest.store is None:
            raise InputError(f"--uri {uri}: the vectors of this gallery are not in Milvus; leave it out")
        if uri != manifest.store["uri"]:
            problems.append(f"{printable_path(str(path))}: its vectors are in Milvus at {manifest.store['uri']}")
            manifest, is_whole = replace(manifest, store={**manifest.store, "uri": uri}), False
    if is_whole:
        try:
            for output in manifest.outputs:
                open_store(folder, manifest, output)
        except GalleryDamagedError as error:
            problems.append(str(error).removesuffix(DAMAGE_ADVICE))
            is_whole = False
    return CheckedVersion(folder, manifest, text, frozenset(intact), is_whole, problems)


def use_version(gallery: Path, version: CheckedVersion, *, identity: str) -> None:
    """Make a whole version the current one, and restore its mark and manifest.

    Unfinished work of another version is removed first, so that it is never published; that of this one stays.
    """
    assert version.manifest is not None
    current, path = find_current(gallery), version.folder / MANIFEST_NAME
    plan, is_moved = read_plan(gallery) or {}, current is None or current.folder != version.folder
    is_of_another = plan.get("base") != version.folder.name or find_announced(gallery, identity=identity) is not None
    if "repair" in plan or (is_moved and is_of_another):
        remove_part(gallery / BUILDING, of=identity)
    if version.problems:
        write_durably(path, version.manifest_text)
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            mark_version(version.folder, of=identity, remembered=catalog.remembered())
    if current == Version(version.folder, hashlib.sha256(version.manifest_text).hexdigest()):
        return
    set_current(gallery, version.folder)
    try:
        store_of(version.manifest).tidy(gallery, version.manifest)
    except GalleryError as error:
        logger.warning("version %s is in use, but what is left over stays: %s", version.folder.name, error)


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """The result of a rollback.

    Attributes:
        left: the version that was current before, if any.
        version: the current one now, of `indexed` images.
        passed_over: damage of the versions between.
    """

    gallery: str
    left: str | None
    version: str
    indexed: int
    passed_over: list[str]
    seconds: float


def rollback_gallery(gallery: Path, *, to: str | None = None, progress: Progress = no_progress) -> RollbackReport:
    """Make an earlier version, the previous one or `to`, the current one again.

    The version that is left stays on the disk until the next change; unfinished work, based on it, is removed. Ids and
    version numbers are never used twice.
    """
    start, shown = time.perf_counter(), printable_path(str(gallery))
    require_own_folder(gallery)
    with lock_gallery(gallery):
        identity, current = claim_gallery(gallery.resolve()), find_current(gallery)
        left = None if current is None else current.name
        own = list_own_versions(gallery, identity=identity, current=current)
        folders = [folder for folder in own if folder.name != left]
        if to is None:
            candidates = [folder for folder in folders if left is None or int(folder.name) < int(left)]
        else:
            candidates = [folder for folder in folders if to.isdigit() and int(folder.name) == int(to)]
            if not candidates:
                others = ", ".join(folder.name for folder in folders) or "none"
                wanted = f"there is no version {printable_path(to)} to go back to"
                raise InputError(f"{shown}: {wanted}; there is: {others}")
        passed: list[str] = []
        for folder in candidates:
            version = check_version(folder, identity=identity, current=current, progress=progress)
            if not version.is_whole:
                passed += version.problems
                continue
            use_version(gallery, version, identity=identity)
            return RollbackReport(
                gallery=valid_text(str(gallery.resolve())),
                left=left,
                version=folder.name,
                indexed=version.indexed,
                passed_over=passed,
                seconds=time.perf_counter() - start,
            )
    wanted = "no version before the current one is whole" if to is None else f"version {to} is not whole"
    listed = f" ({'; '.join(passed)})" if passed else ""
    raise GalleryError(shown, f"{wanted}{listed}; repair the gallery with `retrieval index repair`")


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        version: the current one now; None where no build was ever finished.
        damaged: the damage, in words.
        action: `used`: a whole version is current; `rebuilt`: from an intact catalogue, with damaged vectors embedded
            again; `built again`: everything, from the sources.
        indexed: images of the version.
        embedded: of them, those whose vectors were computed or came from the cache.
        lost: images whose vectors are lost and that cannot be read now.
    """

    gallery: str
    version: str | None
    damaged: Sequence[str]
    action: str = USED
    indexed: int = 0
    embedded: int = 0
    lost: int = 0
    notes: Sequence[str] = field(default_factory=list)
    seconds: float = 0.0


def repair_gallery(
    gallery: Path,
    *,
    model_path: Path | None = None,
    sources: Sequence[str] = (),
    uri: str | None = None,
    **run: Unpack[RunOptions],
) -> RepairReport:
    """Repair a gallery; decisions, uploads and image files are not touched.

    The newest version with an intact catalogue is used. If all its files are intact, it becomes the current one. Else a
    new version is made of it: images keep their ids and labels, and damaged vectors come from another version or the
    cache, or are embedded again. Without an intact catalogue the gallery is built again from its sources, with new
    ids.

    Args:
        model_path: the model file, where every version has lost it.
        sources: of the images, where the gallery has lost them.
        uri: the new address of the gallery's Milvus server; None: the recorded one.
    """
    require_own_folder(gallery)
    import_faiss()
    wait_s, begin_step = run.get("wait_s", LOCK_WAIT_S), run.get("begin_step", no_steps)
    with lock_gallery(gallery, wait_s=wait_s, begin_step=begin_step), naming_trouble(gallery):
        return _Repair(gallery.resolve(), model_path, sources, uri, run).run()


@dataclass(frozen=True, slots=True)
class _Repair:
    """One repair of a gallery, under its lock."""

    gallery: Path
    model_path: Path | None
    sources: Sequence[str]
    uri: str | None
    options: RunOptions
    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)

    def run(self) -> RepairReport:
        shown, begin_step = printable_path(str(self.gallery)), self.options.get("begin_step", no_steps)
        if require_own_folder(self.gallery) is FolderState.DAMAGED:
            self.damaged.append(f"{shown}: its mark or CURRENT is damaged or missing")
        identity, changed = restore_identity(self.gallery)
        if changed:
            self.damaged.append(f"{shown}/{GALLERY_MARK}: another identity than its parts'")
        self._clear_damaged_work(identity)
        current = find_current(self.gallery)
        folders = list_own_versions(self.gallery, identity=identity, current=current)
        if current is None and folders:
            self.damaged.append(f"{shown}/CURRENT: damaged or missing")
        if current is not None:  # versions behind it were left by a rollback
            folders.sort(key=lambda folder: (int(folder.name) > int(current.name), -int(folder.name)))
        lost: list[CheckedVersion] = []

        def check(folder: Path) -> CheckedVersion:
            return check_version(
                folder, identity=identity, current=current, uri=self.uri, progress=begin_step("Checking")
            )

        for number, folder in enumerate(folders, start=1):
            version = check(folder)
            self.damaged.extend(version.problems)
            if CATALOG_NAME not in version.intact:
                lost.append(version)
                continue
            if lost:
                self._note_lost(lost[0], version)
            if version.is_whole:
                use_version(self.gallery, version, identity=identity)
                return self._report(folder.name, indexed=version.indexed)
            others: list[CheckedVersion] = []
            for other in folders[number:]:
                with suppress(GalleryError):  # nothing of it is needed
                    others.append(check(other))
            return self._rebuild(version, folders, others=others)
        if folders:
            return self._build_again(lost)
        for folder in list_versions(self.gallery):
            if read_part(folder) is None and (folder / MANIFEST_NAME).is_file():
                raise GalleryError(
                    printable_path(str(folder / PART_MARK)),
                    "damaged or missing, and so is CURRENT: nothing tells whose version this is, and what its files "
                    "were; put one of the two back from a copy and run this again, or build into another folder",
                )
        self.notes.append(
            "no version was ever finished; run the `retrieval index build` or `copy` that was stopped again"
        )
        return self._report(None)

    def _note_lost(self, lost: CheckedVersion, used: CheckedVersion) -> None:
        """Note what a version had that the used one has not, and how to get it back."""
        self.notes.append(
            f"version {lost.folder.name} is lost, and what was changed in it; `retrieval index update` takes in what "
            "was changed in the sources"
        )
        uploads = added_folder(self.gallery)
        with read_catalog(used.folder / CATALOG_NAME) as catalog:
            if uploads.is_dir() and catalog.added_source() is None:
                self.notes.append(
                    f"what people sent is in {printable_path(str(uploads))}: `retrieval index add` with the gallery "
                    "and that folder takes it in again"
                )

    def _report(self, version: str | None, **values: Any) -> RepairReport:
        seconds = time.perf_counter() - self.start
        return RepairReport(
            valid_text(str(self.gallery)), version, self.damaged, notes=self.notes, seconds=seconds, **values
        )

    def _clear_damaged_work(self, identity: str) -> None:
        """Remove unfinished work that no command can continue."""
        folder, plan = self.gallery / BUILDING, read_plan(self.gallery)
        if not folder.is_dir() or (plan is not None and ("repair" in plan or is_intact_work(folder))):
            return
        if remove_part(folder, of=identity) and plan is not None:
            self.damaged.append(f"{printable_path(str(folder))}: unfinished work that is damaged")
            self.notes.append("unfinished work was thrown away; run the command that was stopped again")

    def _rebuild(
        self, version: CheckedVersion, folders: Sequence[Path], *, others: Sequence[CheckedVersion]
    ) -> RepairReport:
        """Make a version of one with an intact catalogue.

        Missing vectors may be in other versions, because ids are never reused. The newest whole one stays for a
        rollback.
        """
        manifest = version.manifest
        assert manifest is not None
        work = self._open_work(folders, sha256=manifest.model_sha256, runtime=manifest.runtime)
        work.previous = next((other.folder.name for other in others if other.is_whole), None)
        alike = [
            other
            for other in others
            if other.manifest is not None
            and (other.manifest.model_sha256, other.manifest.runtime) == (manifest.model_sha256, manifest.runtime)
        ]
        kept = {  # of an id the last one counts
            output: [held for one in (*reversed(alike), version) for held in one.hold(output)]
            for output in work.embedder.contract.widths
        }
        name, rows = version.folder.name, version.folder / CATALOG_NAME
        work.open_without_base(name, rows=rows, kept=kept, runtime=manifest.runtime)
        with work.opened():
            with work.change() as catalog:
                self._set_store(catalog)
                indexed, sources = catalog.count("indexed"), catalog.sources()
                for row in catalog.find(work.find_lost().tolist()).values():
                    catalog.make_pending([row.id], confirm=sources[row.source].locate(row).is_there())
            embed_pending(work)
            report = publish(work, how=Publication(compact=True))
        lost = max(0, indexed - report.indexed)
        if lost:
            self.notes.append(
                "`retrieval index update` takes in again what cannot be read now, once it is there under its old path"
            )
        return self._report(
            report.version, action=REBUILT, indexed=report.indexed, embedded=report.new_images, lost=lost
        )

    def _set_store(self, catalog: CatalogWriter) -> None:
        if self.uri is not None:
            catalog.set({STORE_SETTING: StoreConfig(MILVUS, self.uri).to_text()})

    def _build_again(self, versions: Sequence[CheckedVersion]) -> RepairReport:
        """Build the gallery from its sources: no catalogue is intact."""
        folders = [version.folder for version in versions]
        marks = (read_part(folder) or {} for folder in folders)
        mark: Mapping[str, Any] = next((mark for mark in marks if mark.get("sources")), {})
        if not mark and not self.sources:
            raise InputError(
                f"{printable_path(str(self.gallery))}: its catalogue is lost in every version, and nothing tells what "
                "it was built from; run this again with --source for each folder, archive, list or table"
            )
        sha256 = next((one.manifest.model_sha256 for one in versions if one.manifest is not None), None)
        work = self._open_work(folders, sha256=sha256, runtime=None)
        work.open_without_base(folders[0].name, rows=None, kept={}, runtime=None)
        with work.opened():
            with work.change() as catalog:
                catalog.set(mark.get("settings", {}))
                self._set_store(catalog)
                if not self.sources:
                    recorded = [(kind, os.fsencode(location)) for kind, location in mark["sources"]]
                    insert = "INSERT OR IGNORE INTO sources (kind, location) VALUES (?, ?)"
                    catalog.connection.executemany(insert, recorded)
                uploads = added_folder(self.gallery)
                given = [*self.sources, *([str(uploads)] if uploads.is_dir() else [])]
                catalog.add_sources(map(find_source, given))
                sources = catalog.sources()
                for source in sources.values():
                    if not source.is_there():
                        raise InputError(
                            f"{printable_path(source.location)}: not there, and the gallery is to be built again from "
                            "it; mount or put it back and run this again, or name what there is with --source"
                        )
                labels, scanning = find_assigned(catalog), work.begin_step("Scanning")
                found = scan_sources(catalog, list(sources), labels=labels, progress=scanning)
                record_scan(catalog, found, scanned=list(sources))
            embed_pending(work)
            report = publish(work, how=Publication(compact=True))
        self.notes.append(
            "the catalogue was lost in every version: all images have new ids, and those that were taken out are back"
        )
        return self._report(report.version, action=BUILT, indexed=report.indexed, embedded=report.new_images)

    def _open_work(self, folders: Sequence[Path], *, sha256: str | None, runtime: Any) -> Workspace:
        """The workspace with the gallery's model: the given one, a version's, or the built-in one."""
        candidates = [folder / MODEL_NAME for folder in folders]
        if sha256 is not None:
            candidates.append(BUILTIN_MODEL)
        found = self.model_path
        for path in filter(Path.is_file, candidates):
            with suppress(ModelFileError):
                if found is None and sha256 in (None, read_model_file(path).sha256):
                    found = path
        if found is None:
            raise GalleryError(
                printable_path(str(self.gallery)),
                "its model is damaged or missing in every version; run this again with --model and the file that it "
                f"was built with (SHA-256 {sha256 or 'unknown: no manifest is intact'})",
            )
        embedder = Embedder(found, threads=1, backend=usual_runtime_of(runtime))
        if sha256 is not None:
            require_model(embedder, expected=sha256, gallery=self.gallery)
        return Workspace(self.gallery, embedder=embedder, start=self.start, **self.options)
