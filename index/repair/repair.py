"""Repair and rollback of a gallery: its versions are checked byte by byte for one that can be used or rebuilt."""

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from index.catalog.reader import read_catalog
from index.catalog.writer import CatalogWriter
from index.durable import hash_file, write_durably
from index.errors import (
    DAMAGE_ADVICE,
    GalleryDamagedError,
    GalleryError,
    GalleryMismatchError,
    InputError,
    ModelFileError,
)
from index.faiss_library import import_faiss
from index.gallery.computed_by import require_same_output, usual_runtime_of
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
from index.versions.versions import highest_next_id, list_versions, mark_version, read_current, set_current
from index.writing.build_config import RunOptions
from index.writing.pending import embed_pending
from index.writing.publishing import publish
from index.writing.scanning import find_assigned, scan_sources
from index.writing.workspace import Workspace, is_intact_work, naming_trouble

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
    def catalog(self) -> Path | None:
        """The path of its catalogue; None where it is damaged."""
        return self.folder / CATALOG_NAME if CATALOG_NAME in self.intact else None

    def has_vectors_of(self, manifest: Manifest) -> bool:
        """Whether its vectors are of the same model and runtime as another version's."""
        seen, wanted = self.manifest, manifest
        return seen is not None and (seen.model_sha256, seen.runtime) == (wanted.model_sha256, wanted.runtime)

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


def list_own_versions(gallery: Path, *, identity: str) -> list[Path]:
    """The version folders with a gallery's identity, or named by CURRENT; newest first."""
    current = find_current(gallery)
    named = None if current is None else current.name
    return [
        folder
        for folder in list_versions(gallery)
        if folder.name == named or (read_part(folder) or {}).get("gallery") == identity
    ]


def check_version(
    folder: Path, *, identity: str, current: Version | None, uri: str | None = None, progress: Progress = no_progress
) -> CheckedVersion:
    """Compare every file of a version with its manifest.

    Args:
        identity: of the gallery.
        current: the version of CURRENT.
        uri: the new address of the Milvus server; None: the recorded one.
    """
    part, path = read_part(folder) or {}, folder / MANIFEST_NAME
    recorded = {part.get("manifest_sha256"), current.manifest_sha256 if current and current.folder == folder else None}
    copy = part.get("manifest")
    texts = [path.read_bytes() if path.is_file() else b""]
    texts += [copy.encode("utf-8", "surrogatepass")] if isinstance(copy, str) else []
    text = next((text for text in texts if hashlib.sha256(text).hexdigest() in recorded), b"")
    manifest, problems = _parse(text, path), []
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


def _parse(text: bytes, path: Path) -> Manifest | None:
    try:
        return Manifest.parse(text)
    except OtherFormatError as error:
        raise GalleryError(printable_path(str(path)), str(error)) from error
    except (ValueError, InputError):
        return None


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
        next_id: the least id of new images; the version that was left may have used those below.
        passed_over: damage of the versions between.
    """

    gallery: str
    left: str | None
    version: str
    indexed: int
    next_id: int
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
        passed: list[str] = []
        for folder in _find_candidates(gallery, identity=identity, left=left, to=to):
            version = check_version(folder, identity=identity, current=current, progress=progress)
            if not version.is_whole:
                passed += version.problems
                continue
            assert version.manifest is not None
            use_version(gallery, version, identity=identity)
            return RollbackReport(
                gallery=valid_text(str(gallery.resolve())),
                left=left,
                version=folder.name,
                indexed=int(version.manifest.counts["indexed"]),
                next_id=highest_next_id(gallery),
                passed_over=passed,
                seconds=time.perf_counter() - start,
            )
    wanted = "no version before the current one is whole" if to is None else f"version {to} is not whole"
    listed = f" ({'; '.join(passed)})" if passed else ""
    raise GalleryError(shown, f"{wanted}{listed}; mend the gallery with `retrieval index repair`")


def _find_candidates(gallery: Path, *, identity: str, left: str | None, to: str | None) -> Iterator[Path]:
    folders = [folder for folder in list_own_versions(gallery, identity=identity) if folder.name != left]
    if to is None:
        yield from (folder for folder in folders if left is None or int(folder.name) < int(left))
        return
    named = [folder for folder in folders if to.isdigit() and int(folder.name) == int(to)]
    if not named:
        others = ", ".join(folder.name for folder in folders) or "none"
        shown, wanted = printable_path(str(gallery)), printable_path(to)
        raise InputError(f"{shown}: there is no version {wanted} to go back to; there is: {others}")
    yield named[0]


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

    Raises:
        InputError: the sources are unknown or missing, or `uri` has no use.
        GalleryError: no gallery, another process writes it, its model is lost, or its server does not answer.
        GalleryMismatchError: the given model is another one, or the runtime gives other vectors than the kept ones.
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
        if require_own_folder(self.gallery) is FolderState.DAMAGED:
            self.damaged.append(f"{self._show()}: its mark or CURRENT is damaged or missing")
        identity, changed = restore_identity(self.gallery)
        if changed:
            self.damaged.append(f"{self._show(GALLERY_MARK)}: another identity than its parts'")
        self._clear_damaged_work(identity)
        current, folders = find_current(self.gallery), list_own_versions(self.gallery, identity=identity)
        if current is None and folders:
            self.damaged.append(f"{self._show('CURRENT')}: damaged or missing")
        if current is not None:  # versions behind it were left by a rollback
            folders.sort(key=lambda folder: (int(folder.name) > int(current.name), -int(folder.name)))
        models: list[str] = []

        def check(folder: Path) -> CheckedVersion:
            return check_version(
                folder, identity=identity, current=current, uri=self.uri, progress=self._begin_step("Checking")
            )

        for number, folder in enumerate(folders, start=1):
            version = check(folder)
            self.damaged.extend(version.problems)
            models += [] if version.manifest is None else [version.manifest.model_sha256]
            if version.catalog is None:
                continue
            if folder != folders[0]:
                self.notes.append(
                    f"version {folders[0].name} is lost, and what was changed in it; `retrieval index update` takes in "
                    "what was changed in the sources"
                )
                self._note_uploads(version.catalog)
            if version.is_whole:
                use_version(self.gallery, version, identity=identity)
                assert version.manifest is not None
                return self._report(folder.name, indexed=int(version.manifest.counts["indexed"]))
            others: list[CheckedVersion] = []
            for other in folders[number:]:
                with suppress(GalleryError):  # nothing of it is needed
                    others.append(check(other))
            return self._rebuild(version, folders, others=others)
        if not folders:
            self._refuse_unmarked()
            self.notes.append(
                "no version was ever finished; run the `retrieval index build` or `copy` that was stopped again"
            )
            return self._report(None)
        return self._build_again(folders, sha256=models[0] if models else None)

    def _refuse_unmarked(self) -> None:
        """Refuse a gallery with a version that may be its own, but has lost its mark."""
        for folder in list_versions(self.gallery):
            if read_part(folder) is None and (folder / MANIFEST_NAME).is_file():
                raise GalleryError(
                    printable_path(str(folder / PART_MARK)),
                    "damaged or missing, and so is CURRENT: nothing tells whose version this is, and what its files "
                    "were; put one of the two back from a copy and run this again, or build into another folder",
                )

    def _note_uploads(self, rows: Path) -> None:
        """Note how to add uploaded images again, where they are no source of the version."""
        uploads = added_folder(self.gallery)
        with read_catalog(rows) as catalog:
            if uploads.is_dir() and catalog.added_source() is None:
                self.notes.append(
                    f"what people sent is in {printable_path(str(uploads))}: `retrieval index add` with the gallery "
                    "and that folder takes it in again"
                )

    def _begin_step(self, name: str) -> Progress:
        return self.options.get("begin_step", no_steps)(name)

    def _show(self, name: str = "") -> str:
        return printable_path(str(self.gallery / name))

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
            self.damaged.append(f"{self._show(BUILDING)}: unfinished work that cannot be gone on with")
            self.notes.append("unfinished work was thrown away; run the command that was stopped again")

    def _rebuild(
        self, version: CheckedVersion, folders: Sequence[Path], *, others: Sequence[CheckedVersion]
    ) -> RepairReport:
        """Make a version of one with an intact catalogue.

        Missing vectors may be in other versions, because an id stands for the same bytes in all. The newest whole one
        stays for a rollback.
        """
        manifest, rows = version.manifest, version.catalog
        assert manifest is not None
        assert rows is not None
        work = self._open_work(folders, sha256=manifest.model_sha256, runtime=manifest.runtime)
        work.previous = next((other.folder.name for other in others if other.is_whole), None)
        alike = [other for other in others if other.has_vectors_of(manifest)]
        kept = {  # of an id the last one counts
            output: [held for one in (*reversed(alike), version) for held in one.hold(output)]
            for output in work.embedder.contract.widths
        }
        if any(kept.values()):
            require_same_output(manifest.runtime, work.embedder, gallery=self.gallery)
        work.open_without_base(version.folder.name, rows=rows, kept=kept, runtime=manifest.runtime)
        assert work.kept_ids is not None
        indexed = len(work.kept_ids)

        with work.opened():
            with work.change() as catalog:
                self._set_store(catalog)
                sources = catalog.sources()
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

    def _build_again(self, folders: Sequence[Path], *, sha256: str | None) -> RepairReport:
        """Build the gallery from its sources: no catalogue is intact."""
        marks = (read_part(folder) or {} for folder in folders)
        mark: Mapping[str, Any] = next((mark for mark in marks if mark.get("sources")), {})
        if not mark and not self.sources:
            raise InputError(
                f"{self._show()}: its catalogue is lost in every version, and nothing tells what it was built from; "
                "run this again with --source for each folder, archive, list or table"
            )
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
                labels, scanning = find_assigned(catalog), self._begin_step("Scanning")
                found = scan_sources(catalog, list(sources), labels=labels, progress=scanning)
                catalog.record_scan(found, scanned=list(sources))
            embed_pending(work)
            report = publish(work, how=Publication(compact=True))
        self.notes.append(
            "the catalogue was lost in every version: all images have new ids, and those that were taken out are back"
        )
        return self._report(report.version, action=BUILT, indexed=report.indexed, embedded=report.new_images)

    def _open_work(self, folders: Sequence[Path], *, sha256: str | None, runtime: Any) -> Workspace:
        model = _find_model([folder / MODEL_NAME for folder in folders], self.model_path, sha256, self._show())
        embedder = Embedder(model, threads=1, backend=usual_runtime_of(runtime))
        return Workspace(self.gallery, embedder=embedder, start=self.start, **self.options)


def _find_model(kept: Sequence[Path], given: Path | None, sha256: str | None, shown: str) -> Path:
    """The model with this SHA-256: the given one, a version's, or the built-in one.

    Without a known SHA-256, the given one or any undamaged one of a version.
    """
    candidates = list(kept) if given is None else [given]
    if sha256 is not None:
        candidates.append(BUILTIN_MODEL)
    for path in filter(Path.is_file, candidates):
        if sha256 is not None or path == given:
            if sha256 in (None, hash_file(path)):
                return path
            continue
        with suppress(ModelFileError):
            read_model_file(path)
            return path
    if given is not None and sha256 is not None:
        raise GalleryMismatchError(
            shown,
            what="model (SHA-256)",
            expected=str(sha256),
            seen=hash_file(given),
            advice="give the --model that it was built with",
        )
    raise GalleryError(
        shown,
        "its model is damaged or missing in every version; run this again with --model and the file that it was built "
        f"with (SHA-256 {sha256 or 'unknown: no manifest is intact'})",
    )
