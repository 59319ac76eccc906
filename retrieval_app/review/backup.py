"""Backing up what people made of a gallery: their decisions, the images that they sent, and what they took out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

from index.catalog.catalog_scan import REMOVED
from index.catalog.reader import read_catalog
from index.catalog.rows import CatalogRow
from index.errors import GalleryError, ImageError, InputError
from index.marks import read_mark
from index.progress import Progress, no_progress
from index.sources.folder_walk import walk_folder
from index.sources.items import FoundItem
from index.sources.local_source import FolderSource
from index.text import printable_path, valid_text
from index.versions.manifest import CATALOG_NAME, Manifest
from index.versions.people import PEOPLE, added_folder, decisions_file
from index.versions.versions import find_version, hold_current
from retrieval_app.review.backup_file import (
    DECISIONS_NAME,
    IMAGES_NAME,
    LOG_NAME,
    REMOVED_NAME,
    BackupWriter,
    SentImage,
    name_member,
    write_backup,
)
from retrieval_app.review.database import Database
from retrieval_app.review.decision_lines import write_lines
from retrieval_app.review.history import DecidedStep, read_history
from retrieval_app.review.log_files import Line, read_log
from retrieval_app.review.removals import Removal, list_removals

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds.

    Attributes:
        steps: calls that decided something and were not undone.
        label_decisions: that hold.
        duplicate_decisions: that hold.
        images: that were sent, those taken out again included.
        removed: of them, those taken out again.
        taken_out: photos of other sources that were taken out.
        bytes: of the file.
        log_lines: of the log of who did what.
        notes: what could not be told, or was left out because it cannot be read.
        store: the server that has the gallery's vectors, of which the file has none; None where its folder has them.
    """

    gallery: str
    file: str
    steps: int
    label_decisions: int
    duplicate_decisions: int
    images: int
    removed: int
    taken_out: int
    bytes: int
    notes: list[str]
    log_lines: int = 0
    store: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What the current version of a gallery knows: of images sent by their path, of others by their id."""

    facts: dict[str, Any]
    sent: dict[str, CatalogRow]
    decided: list[dict[str, Any]]
    removals: list[Removal]
    store: str | None = None


def back_up(
    gallery: Path, out: Path, *, overwrite: bool = False, progress: Progress = no_progress
) -> BackupReport:
    """Write what people made of a gallery to one file; of a damaged gallery too.

    The decisions are of one moment; of images that are sent meanwhile some may be missing.

    Args:
        gallery: its folder.
        out: the file.
        overwrite: whether a file that is there is replaced.
        progress: called with (done, total) images.

    Raises:
        InputError: there is such a file, it lies where the gallery would find it, or it cannot be written.
        GalleryError: there is no such gallery.
        ReviewError: the decisions are damaged.
    """
    _check_gallery(gallery)
    _check_out(out, gallery=gallery, overwrite=overwrite)
    with closing(Database(decisions_file(gallery))) as database:
        steps = read_history(database)  # before the images: those decided about in between are there then
    notes: list[str] = []
    try:
        known = _read_known(gallery, _decided_ids(steps))
    except GalleryError as error:
        notes.append(f"the gallery cannot be read, so nobody knows which images were taken out of it: {error}")
        known = _Known({}, {}, [], [])
    with write_backup(out, overwrite=overwrite) as writer:
        writer.add(DECISIONS_NAME, write_lines(steps))
        writer.add(IMAGES_NAME, (json.dumps(image).encode() + b"\n" for image in known.decided))
        removals = (json.dumps(asdict(removal)).encode() + b"\n" for removal in known.removals)
        writer.add(REMOVED_NAME, removals)
        log = _read_log(gallery, notes)
        writer.add(LOG_NAME, (json.dumps(line).encode() + b"\n" for line in log))
        sent = list(_write_sent(writer, gallery, known.sent, notes, progress))
        head = {"name": valid_text(gallery.resolve().name), "id": read_mark(gallery), **known.facts}
        made_at = datetime.now(UTC).isoformat(timespec="seconds")
        writer.finish({"made_at": made_at, "gallery": head, "sent": [asdict(image) for image in sent]})
    holding = {subject: decision for step in steps for subject, decision in step.by_subject().items()}
    labels = sum("/" in subject for subject in holding)
    return BackupReport(
        gallery=valid_text(str(gallery.resolve())),
        file=valid_text(str(out)),
        steps=len(steps),
        label_decisions=labels,
        duplicate_decisions=len(holding) - labels,
        images=len(sent),
        removed=sum(image.removed for image in sent),
        taken_out=len(known.removals),
        bytes=out.stat().st_size,
        notes=notes,
        log_lines=len(log),
        store=known.store,
    )


def _read_log(gallery: Path, notes: list[str]) -> list[Line]:
    try:
        return read_log(gallery)
    except InputError as error:
        notes.append(f"left out: {error}")
        return []


def _check_gallery(gallery: Path) -> None:
    """Raise GalleryError where there is neither a gallery nor what people made of one."""
    if not (gallery / PEOPLE).is_dir() and not (gallery / "CURRENT").exists():
        find_version(gallery)  # says what is missing


def _check_out(out: Path, *, gallery: Path, overwrite: bool) -> None:
    shown = printable_path(str(out))
    if out.is_dir():
        raise InputError(
            f"{shown}: a folder has this name; name a file, such as {out.name or 'gallery'}.backup.zip"
        )
    if os.path.lexists(out) and not overwrite:
        raise InputError(f"{shown}: there is such a file already; name another, or give --overwrite")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{shown}: its folder does not exist; make it first")
    for folder in (gallery.resolve(), *_source_folders(gallery)):
        if out.resolve().is_relative_to(folder):
            raise InputError(
                f"{shown} lies inside {printable_path(str(folder))}, where the gallery or its images are, and would be "
                "taken for one of them; choose a place beside it"
            )


def _source_folders(gallery: Path) -> list[Path]:
    try:
        with read_catalog(find_version(gallery).folder / CATALOG_NAME) as catalog:
            return [
                Path(source.root).resolve()
                for source in catalog.sources().values()
                if isinstance(source, FolderSource)
            ]
    except GalleryError:  # it is damaged, which `back_up` notes
        return []


def _decided_ids(steps: Iterable[DecidedStep]) -> set[int]:
    ids = {d.image_id for step in steps for d in step.labels if d.image_id is not None}
    return ids | {image.image_id for step in steps for d in step.duplicates for image in d.images}


def _read_known(gallery: Path, ids: set[int]) -> _Known:
    version, hold = hold_current(gallery)
    try:
        manifest = Manifest.read(version)
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            sources, added = catalog.sources(), catalog.added_source()
            numbers = [] if added is None else [number for number, _ in catalog.paths(added)]
            sent = {row.path: row for row in catalog.rows_of(numbers)}
            decided = [
                {"id": row.id, "sha256": row.sha256, "label": row.label, "path": row.path,
                 "source": sources[row.source].location}
                for row in catalog.rows_of(ids)
            ]  # fmt: skip
            facts = {"version": version.name, "model_sha256": manifest.model_sha256, "next_id": catalog.next_id()}
            removals = list_removals(catalog)
    finally:
        os.close(hold)
    store = None if manifest.store is None else str(manifest.store["uri"])
    return _Known(facts, sent, decided, removals, store)


def _write_sent(
    writer: BackupWriter, gallery: Path, known: dict[str, CatalogRow], notes: list[str], progress: Progress
) -> Iterator[SentImage]:
    folder = added_folder(gallery)
    found = list(walk_folder(folder)) if folder.is_dir() else []
    for done, file in enumerate(found, start=1):
        path, row = file.path, known.get(file.path)
        member, is_removed = name_member(path, done), row is not None and row.reason == REMOVED
        try:
            content = _open_sent(folder, file)
        except ImageError as error:
            notes.append(f"left out: {error}")
            continue
        with content:
            writer.add(member, iter(partial(content.read, _BLOCK_BYTES), b""))
        yield SentImage(member, path, file.mtime_ns, None if row is None else row.id, is_removed)
        progress(done, len(found))


def _open_sent(folder: Path, file: FoundItem) -> IO[bytes]:
    if file.problem is not None:
        raise file.problem
    try:
        return (folder / file.path).open("rb")
    except OSError as error:
        raise ImageError(
            path=printable_path(file.path), reason="unreadable", detail=str(error.strerror)
        ) from error
