"""Bringing a backup of what people made back into a gallery: what is there already, and is newer, stays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from index.durable import hash_file
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.marks import read_mark
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.text import printable_path, valid_text
from index.versions.people import added_folder, decisions_file
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, remove_from_gallery
from index.writing.build_config import BuildConfig
from retrieval_app.review.added_images import (
    AddedImage,
    keep_file,
    name_sources,
    read_added_rows,
    read_current_catalog,
)
from retrieval_app.review.attaching import attach_steps, describe_lost
from retrieval_app.review.backup_file import (
    DECISIONS_NAME,
    IMAGES_NAME,
    LOG_NAME,
    REMOVED_NAME,
    BackupReader,
    SentImage,
    open_backup,
)
from retrieval_app.review.database import Database
from retrieval_app.review.decision_lines import read_step
from retrieval_app.review.history import merge_history
from retrieval_app.review.log_files import bring_lines, check_line
from retrieval_app.review.removals import Removal, find_removed, read_removal


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore brought back.

    Attributes:
        images: sent images by what became of them: `restored` files, files `present` already, `removed` ones that
            were taken out before the backup and are left out, and files `in_the_way`, other ones of the same name.
        indexed: images that the gallery has now and had not before.
        decisions: by what became of them: `restored`, `present` already, or `older` than what holds.
        removals: photos of other sources that were taken out, by what became of them: `taken_out` again, `out` already
            or not there, `added_again` to this very gallery since the backup, which stay, or `last`, all that the
            gallery has, which stay too.
        log_lines: lines of the log of who did what that the gallery did not have.
        not_attached: decisions about images that the gallery does not have; they are kept.
    """

    gallery: str
    file: str
    images: dict[str, int]
    indexed: int
    decisions: dict[str, int]
    removals: dict[str, int]
    not_attached: list[dict[str, object]] = field(default_factory=list)
    log_lines: int = 0


def restore(
    file: Path,
    gallery: Path,
    *,
    config: BuildConfig | None = None,
    checking: Progress = no_progress,
    progress: Progress = no_progress,
    begin_step: BeginStep = no_steps,
) -> RestoreReport:
    """Bring a backup into a gallery with a finished version; done again it goes on where it was stopped.

    Nothing that is in the gallery is lost: of two decisions about the same the later holds, files are never replaced
    but by the bytes that their own name tells. What was taken out stays out, and is taken out of a gallery built anew.

    Args:
        file: of the backup.
        gallery: the same one as before, or another one with the same images.
        config: how images are embedded.
        checking: called with (done, total) members of the file.
        progress: called with (done, total) images to embed.
        begin_step: called when any other step begins that may take long.

    Raises:
        BackupError: the file is no sound backup; nothing is changed.
        GalleryError: there is no finished gallery, or another process writes it.
        ReviewError: the decisions cannot be kept.
    """
    find_version(gallery)
    with open_backup(file, progress=checking) as backup:
        steps = list(backup.read(DECISIONS_NAME, read_step))
        paths = dict(backup.read(IMAGES_NAME, _read_path))
        log = list(backup.read(LOG_NAME, check_line))
        removals = list(backup.read(REMOVED_NAME, read_removal))
        first_new = _first_new_id(backup, gallery)
        outcomes = {image.path: _restore_file(backup, image, gallery) for image in backup.sent}
        taken_out = {image.path for image in backup.sent if image.removed and outcomes[image.path] == "present"}
    there = [path for path, outcome in outcomes.items() if outcome in ("restored", "present")]
    options: dict[str, Any] = {"config": config, "progress": progress, "begin_step": begin_step}
    indexed = _index(gallery, there, taken_out=taken_out, options=options)
    removed = _take_out(gallery, removals, first_new=first_new, options=options)
    attached, lost = attach_steps(Gallery.open(gallery), steps, paths=paths)
    with closing(Database(decisions_file(gallery))) as database:
        merged = merge_history(database, attached)
    brought = bring_lines(gallery, log)
    counts = dict.fromkeys(("restored", "present", "removed", "in_the_way"), 0)
    for outcome in outcomes.values():
        counts[outcome] += 1
    return RestoreReport(
        gallery=valid_text(str(gallery.resolve())),
        file=valid_text(str(file)),
        images=counts,
        indexed=indexed,
        decisions=asdict(merged),
        removals=removed,
        not_attached=[describe_lost(decision) for decision in lost],
        log_lines=brought,
    )


def _read_path(line: dict[str, Any]) -> tuple[int, str]:
    image_id, path = line.get("id"), line.get("path")
    if not isinstance(image_id, int) or not isinstance(path, str):
        raise InputError("an image that is decided about has no id and path")
    return image_id, path


def _first_new_id(backup: BackupReader, gallery: Path) -> int | None:
    """From which id on the images of the very gallery were added after the backup; None in another gallery."""
    head = backup.manifest.get("gallery")
    facts, identity = head if isinstance(head, dict) else {}, read_mark(gallery)
    first = facts.get("next_id")
    return first if identity is not None and facts.get("id") == identity and isinstance(first, int) else None


def _take_out(
    gallery: Path, removals: Sequence[Removal], *, first_new: int | None, options: dict[str, Any]
) -> dict[str, int]:
    """Take photos out that had been taken out before the backup; how many, by what became of them."""
    counts = dict.fromkeys(("taken_out", "out", "added_again", "last"), 0)
    if not removals:
        return counts
    with read_current_catalog(gallery) as catalog:
        found, out = find_removed(catalog, removals)
        usable = catalog.count("indexed") + catalog.count("duplicate")
    # An image that was taken out has come back to the same gallery only where somebody added it by name.
    there = {number for number in found if first_new is None or number < first_new}
    counts.update(out=out, added_again=len(found) - len(there))
    if there and len(there) == usable:
        counts["last"] = len(there)  # a gallery holds at least one image
    elif there:
        remove_from_gallery(gallery, selection=Selection(ids=tuple(there)), **options)
        counts["taken_out"] = len(there)
    return counts


def _restore_file(backup: BackupReader, image: SentImage, gallery: Path) -> str:
    """Put a sent image into its place, and say what became of it."""
    path = added_folder(gallery) / image.path
    is_there = os.path.lexists(path)
    if image.removed and not is_there:  # in its place the next start of a server would add it again
        return "removed"
    if is_there and _hash(path) == backup.sha256_of(image.member):
        return "present"
    if is_there and not path.name.startswith(backup.sha256_of(image.member)):
        return "in_the_way"
    try:
        kept = keep_file(gallery, backup.blocks(image.member), name=image.path)
        os.utime(kept, ns=(image.mtime_ns, image.mtime_ns))
    except OSError as error:
        raise InputError(
            f"{printable_path(str(path))}: the image cannot be restored: {error.strerror or error}; mend the cause and "
            "run it again: what was restored is kept"
        ) from error
    return "restored"


def _hash(path: Path) -> str | None:
    """The SHA-256 of a file; None where it cannot be read."""
    try:
        return hash_file(path)
    except OSError:
        return None


def _index(gallery: Path, there: Sequence[str], *, taken_out: set[str], options: dict[str, Any]) -> int:
    """Let the gallery have the images that it has no item of, but for those taken out; the number of these."""
    known = read_added_rows(gallery)
    images = [AddedImage(path, None) for path in there if path not in known]
    if not images:
        return 0
    add_to_gallery(gallery, name_sources(gallery, images), **options)
    now = read_added_rows(gallery)
    new = {image.name: now[image.name] for image in images if image.name in now}
    usable = {name: row for name, row in new.items() if row.status in ("indexed", "duplicate")}
    if out := tuple(row.id for name, row in usable.items() if name in taken_out):
        remove_from_gallery(gallery, selection=Selection(ids=out), **options)
    return len(usable.keys() - taken_out)
