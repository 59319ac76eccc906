"""Repair and rollback of a gallery: its versions are checked byte by byte for one that can be used or rebuilt."""

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from index.catalog.reader import read_catalog
from index.durable import hash_file, write_durably
from index.errors import DAMAGE_ADVICE, GalleryDamagedError, GalleryError, InputError
from index.faiss_library import import_faiss
from index.gallery.computed_by import usual_runtime_of
from index.limits import WRITER_WAIT_S
from index.markers import PART_MARK, read_part
from index.model.builtin import BUILTIN_MODEL
from index.model.contract import find_contract
from index.model.embedder import Embedder
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.text import printable_path, valid_text
from index.vectors.ann_config import MILVUS, STORE_SETTING, StoreConfig
from index.vectors.shards import VectorSource
from index.vectors.stores import open_store, store_of
from index.versions.annotations import added_folder
from index.versions.gallery_identity import FolderState, claim_gallery, lock_gallery, require_own_folder
from index.versions.gallery_parts import BUILDING, read_plan, remove_part
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
from index.writing.publishing import BuildReport, publish
from index.writing.workspace import Workspace, disk_errors_as_gallery_errors, is_intact_work

logger = logging.getLogger(__name__)

USED, REBUILT = "used", "rebuilt"


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """A version of a gallery, and its intact files.

    The manifest is from its file or the copy in the version's mark; None where both are damaged. A version is whole if
    all files are intact, and the store has the vectors; it may lack its mark, or the file of its manifest.
    """

    folder: Path
    manifest: Manifest | None
    manifest_text: bytes
    intact: frozenset[str]
    is_whole: bool
    problems: Sequence[str]

    @property
    def indexed(self) -> int:
        return 0 if self.manifest is None else int(self.manifest.counts["indexed"])

    def hold(self, output: str) -> Sequence[VectorSource]:
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
    """Compare every file of a version with its manifest; `uri` is the new address of the Milvus server."""
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
        raise GalleryError(path, str(error)) from error
    except (ValueError, InputError):
        pass
    if manifest is None or text != texts[0]:
        problems.append(f"{printable_path(path)}: damaged or missing")
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
            problems.append(f"{printable_path(path)}: its vectors are in Milvus at {manifest.store['uri']}")
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
    """Make a whole version the current one, with its mark and manifest; unfinished work of another one is removed."""
    assert version.manifest is not None
    current, path = find_current(gallery), version.folder / MANIFEST_NAME
    plan, is_moved = read_plan(gallery) or {}, current is None or current.folder != version.folder
    if "repair" in plan or (is_moved and plan.get("base") != version.folder.name):
        remove_part(gallery / BUILDING, of=identity)
    if version.problems:
        write_durably(path, version.manifest_text)
        mark_version(version.folder, of=identity)
    if current == Version(version.folder, hashlib.sha256(version.manifest_text).hexdigest()):
        return
    set_current(gallery, version.folder)
    try:
        store_of(version.manifest).tidy(gallery, version.manifest)
    except GalleryError as error:
        logger.warning("version %s is in use, but what is left over stays: %s", version.folder.name, error)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair or a rollback; `version` is the current one now, None where no build was ever finished.

    `action` is `used`: a whole version is current; `rebuilt`: from an intact catalogue; or the version from which a
    rollback went back. `embedded` images got their vectors from the model or the cache; `lost` ones cannot be read.
    """

    gallery: str
    version: str | None
    damaged: Sequence[str]
    action: str = USED
    indexed: int = 0
    embedded: int = 0
    lost: int = 0
    notes: Sequence[str] = ()
    seconds: float = 0.0


def rollback_gallery(gallery: Path, *, to: str | None = None, progress: Progress = no_progress) -> RepairReport:
    """Make an earlier version, the previous one or `to`, the current one; unfinished work on that one goes."""
    start, shown = time.perf_counter(), printable_path(gallery)
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
                raise InputError(f"{wanted}; there is: {others}", at=shown)
        passed: list[str] = []
        for folder in candidates:
            version = check_version(folder, identity=identity, current=current, progress=progress)
            if not version.is_whole:
                passed += version.problems
                continue
            use_version(gallery, version, identity=identity)
            return RepairReport(
                gallery=valid_text(str(gallery.resolve())),
                version=folder.name,
                damaged=passed,
                action=f"back from {'a damaged CURRENT' if left is None else f'version {left}'}",
                indexed=version.indexed,
                seconds=time.perf_counter() - start,
            )
    wanted = "no version before the current one is whole" if to is None else f"version {to} is not whole"
    listed = f" ({'; '.join(passed)})" if passed else ""
    raise GalleryError(shown, f"{wanted}{listed}; repair the gallery with `retrieval index repair`")


def repair_gallery(
    gallery: Path, *, model_path: Path | None = None, uri: str | None = None, **run: Unpack[RunOptions]
) -> RepairReport:
    """Repair a gallery; decisions, uploads and image files are not touched.

    The newest version with an intact catalogue is used, or, if some of its files are damaged, made again under the
    same ids, with lost vectors from the cache or the images. `model_path` replaces a model that every version has lost;
    `uri` is the new address of the gallery's Milvus server.
    """
    start, gallery = time.perf_counter(), gallery.resolve()
    state, shown, damaged, notes = require_own_folder(gallery), printable_path(gallery), list[str](), list[str]()
    wait_s, begin_step = run.get("wait_s", WRITER_WAIT_S), run.get("begin_step", no_steps)
    import_faiss()
    with lock_gallery(gallery, wait_s=wait_s, begin_step=begin_step), disk_errors_as_gallery_errors(gallery):
        if state is FolderState.DAMAGED:
            damaged.append(f"{shown}: its mark or CURRENT is damaged or missing")
        identity = claim_gallery(gallery)
        if _clear_damaged_work(gallery, identity=identity):
            damaged.append(f"{shown}/{BUILDING}: unfinished work that is damaged")
            notes.append("unfinished work was thrown away; run the command that was stopped again")
        current = find_current(gallery)
        folders = list_own_versions(gallery, identity=identity, current=current)
        if current is None and folders:
            damaged.append(f"{shown}/CURRENT: damaged or missing")
        if current is not None:  # versions behind it were left by a rollback
            folders.sort(key=lambda folder: (int(folder.name) > int(current.name), -int(folder.name)))
        version = _find_sound(folders, damaged, identity=identity, current=current, uri=uri, begin_step=begin_step)
        if version is None:
            if any((folder / MANIFEST_NAME).is_file() for folder in list_versions(gallery)):
                raise GalleryError(
                    shown,
                    "CURRENT and part.json in its versions are damaged or missing, so nothing tells what files they "
                    "had; put one back from a copy and run this again, or build into another folder",
                )
            notes.append(
                "no version was ever finished; run the `retrieval index build` or `copy` that was stopped again"
            )
            return RepairReport(valid_text(str(gallery)), None, damaged, notes=notes)
        folder = version.folder
        if folder != folders[0]:
            notes += _describe_lost(gallery, lost=folders[0], used=folder)
        action, counts = USED, {"indexed": version.indexed}
        if version.is_whole:
            use_version(gallery, version, identity=identity)
            name = folder.name
        else:
            action = REBUILT
            candidates = [model_path] if model_path else [*(each / MODEL_NAME for each in folders), BUILTIN_MODEL]
            report = _rebuild(gallery, version, models=candidates, uri=uri, start=start, **run)
            name, lost = report.version, max(0, version.indexed - report.indexed)
            counts = {"indexed": report.indexed, "embedded": report.new_images, "lost": lost}
            if lost:
                notes.append(
                    "`retrieval index update` adds what cannot be read now, once it is under its old path again"
                )
    seconds = time.perf_counter() - start
    return RepairReport(valid_text(str(gallery)), name, damaged, action=action, notes=notes, seconds=seconds, **counts)


def _find_sound(
    folders: Sequence[Path],
    damaged: list[str],
    *,
    identity: str,
    current: Version | None,
    uri: str | None,
    begin_step: BeginStep,
) -> CheckedVersion | None:
    """The first version with an intact catalogue, None of no version; problems of those checked go to `damaged`."""
    for folder in folders:
        progress = begin_step("Checking")
        version = check_version(folder, identity=identity, current=current, uri=uri, progress=progress)
        damaged.extend(version.problems)
        if CATALOG_NAME in version.intact:
            return version
    if folders:
        raise GalleryError(
            printable_path(folders[0].parents[1]),
            "its catalogue is lost in every version; build the gallery again into another folder, and move "
            "annotations/ there, which has the decisions and uploads",
        )
    return None


def _clear_damaged_work(gallery: Path, *, identity: str) -> bool:
    """Remove unfinished work that no command can continue; whether there was any."""
    folder, plan = gallery / BUILDING, read_plan(gallery)
    if not folder.is_dir() or (plan is not None and ("repair" in plan or is_intact_work(folder))):
        return False
    return remove_part(folder, of=identity) and plan is not None


def _describe_lost(gallery: Path, *, lost: Path, used: Path) -> Iterator[str]:
    """Notes on what a lost version had that the used one has not, and how to get it back."""
    yield (
        f"version {lost.name} is lost, and what was changed in it; `retrieval index update` takes in what was changed "
        "in the sources"
    )
    uploads = added_folder(gallery)
    with read_catalog(used / CATALOG_NAME) as catalog:
        if uploads.is_dir() and catalog.added_source() is None:
            yield (
                f"what people sent is in {printable_path(uploads)}: `retrieval index add` with the gallery and "
                "that folder takes it in again"
            )


def _is_model(path: Path, sha256: str) -> bool:
    """Whether a file is the model of this checksum, with undamaged text files beside it."""
    if not path.is_file() or hash_file(path) != sha256:
        return False
    contract = find_contract(path)
    files = {} if contract is None else contract.text_files(path)
    return all(file.is_file() and hash_file(file) == own for file, own in files.items())


def _rebuild(
    gallery: Path,
    version: CheckedVersion,
    *,
    models: Sequence[Path],
    uri: str | None,
    start: float,
    **run: Unpack[RunOptions],
) -> BuildReport:
    """Make a version of one with an intact catalogue, with its intact vectors."""
    manifest = version.manifest
    assert manifest is not None
    sha256 = manifest.model_sha256
    model = next((path for path in models if _is_model(path, sha256)), None)
    if model is None:
        raise GalleryError(
            gallery,
            "its model is damaged or missing in every version; run this again with --model and the file that it was "
            f"built with (SHA-256 {sha256}), with its text tower beside it where it had one",
        )
    embedder = Embedder(model, threads=1, backend=usual_runtime_of(manifest.runtime))
    work = Workspace(gallery, embedder=embedder, start=start, **run)
    kept = {output: version.hold(output) for output in work.embedder.contract.widths}
    rows = version.folder / CATALOG_NAME
    work.open_without_base(version.folder.name, rows=rows, kept=kept, runtime=manifest.runtime)
    with work.opened():
        with work.change() as catalog:
            if uri is not None:
                catalog.set({STORE_SETTING: StoreConfig(MILVUS, uri).to_text()})
            sources = catalog.sources()
            for row in catalog.find(work.find_lost().tolist()).values():
                catalog.make_pending([row.id], confirm=sources[row.source].locate(row).is_there())
        embed_pending(work)
        return publish(work, rewrite=True)
