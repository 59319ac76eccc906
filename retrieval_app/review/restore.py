"""Restoring a backup into a gallery: newer decisions and files of the gallery stay."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from index.catalog.reader import Catalog
from index.catalog.rows import REMOVED, CatalogRow
from index.durable import hash_file
from index.errors import InputError
from index.gallery.selection import Selection
from index.labels.decisions import LabelDecision, LabelKey
from index.marks import read_mark
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.text import printable_path, valid_text
from index.versions.annotations import added_folder
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, remove_from_gallery
from retrieval_app.review.activity_log import bring_lines
from retrieval_app.review.added_images import keep_file, name_sources, read_added_rows, read_current_catalog
from retrieval_app.review.backup import Removal, SentImage, list_taken_out, open_backup, read_blocks
from retrieval_app.review.review_store import Decision, ReviewStore, Step
from retrieval_app.review.subjects import USABLE, list_usable, rank_path


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Outcome of a restore.

    Attributes:
        images: uploads by outcome: `restored`, `present` already, `removed` before the backup and left out, or
            `in_the_way`: another file has the name.
        indexed: images that are new in the gallery.
        decisions: by outcome: `restored`, `present` already, or `older` than the one that holds.
        removals: removed images by outcome: `taken_out` again, `out` already or unknown here, `added_again` to this
            very gallery since the backup, or `last`: they are all that the gallery has. The last two stay.
        not_attached: decisions about images that the gallery does not have; they are kept.
        log_lines: lines that are new in the activity log.
    """

    gallery: str
    file: str
    images: dict[str, int]
    indexed: int
    decisions: dict[str, int]
    removals: dict[str, int]
    not_attached: list[dict[str, object]]
    log_lines: int


def restore(
    file: Path,
    gallery: Path,
    *,
    checking: Progress = no_progress,
    progress: Progress = no_progress,
    begin_step: BeginStep = no_steps,
) -> RestoreReport:
    """Merge a backup into its gallery, or another with the same images; repeated, it goes on where it was stopped.

    Of two decisions about the same subject the later holds. Files are replaced only where their name, a checksum, shows
    that they are damaged. Removed images stay out, and leave a gallery that was built anew. An unsound backup is a
    BackupError, before anything is changed.
    """
    find_version(gallery)
    images = dict.fromkeys(("restored", "present", "removed", "in_the_way"), 0)
    wanted = list[str]()
    with open_backup(file, checking) as backup:
        manifest, identity = backup.manifest, read_mark(gallery)
        for image in manifest.sent:
            outcome = _restore_file(backup.archive, image, gallery)
            images[outcome] += 1
            if outcome in ("restored", "present") and not image.removed:
                wanted.append(image.path)
    before = read_added_rows(gallery)
    if missing := [name for name in wanted if name not in before]:
        sources = name_sources(gallery, missing)
        add_to_gallery(gallery, sources, progress=progress, begin_step=begin_step)
    # An image that was taken out has come back to the same gallery only where somebody added it by name since.
    is_same = identity is not None and manifest.gallery_id == identity
    with read_current_catalog(gallery) as catalog:
        found = _find_removed(catalog, manifest.removed)
        usable = catalog.count("indexed") + catalog.count("duplicate")
    known = {row.id for row in before.values()}
    new = {row.id for row in read_added_rows(gallery).values() if row.status in USABLE} - known
    out = {one for one in found if not is_same or one in new or one < (manifest.next_id or 0)}
    is_last = 0 < len(out) == usable  # a gallery holds at least one image
    if out and not is_last:
        selection = Selection(ids=tuple(sorted(out)))
        remove_from_gallery(gallery, selection=selection, progress=progress, begin_step=begin_step)
    with closing(ReviewStore.of_gallery(gallery)) as store:
        merged = store.merge(backup.steps)
    return RestoreReport(
        gallery=valid_text(str(gallery.resolve())),
        file=valid_text(str(file)),
        images=images,
        indexed=len(new if is_last else new - out),
        decisions=merged,
        removals={
            "taken_out": 0 if is_last else len(out),
            "out": len(manifest.removed) - len(found),
            "added_again": len(found) - len(out),
            "last": len(out) if is_last else 0,
        },
        not_attached=_list_lost(gallery, backup.steps),
        log_lines=bring_lines(gallery, backup.log),
    )


def _restore_file(archive: zipfile.ZipFile, image: SentImage, gallery: Path) -> str:
    """Put an uploaded image into its place; the outcome."""
    path = added_folder(gallery) / image.path
    is_there = os.path.lexists(path)
    if image.removed and not is_there:  # in its place the next start of a server would add it again
        return "removed"
    with suppress(OSError):  # one that cannot be read is mended where its name tells its bytes
        if is_there and hash_file(path) == image.sha256:
            return "present"
    if is_there and not path.name.startswith(image.sha256):
        return "in_the_way"
    try:
        keep_file(gallery, read_blocks(archive, image.member), name=image.path)
        os.utime(path, ns=(image.mtime_ns, image.mtime_ns))
    except OSError as error:
        problem = f"{printable_path(str(path))}: the image cannot be restored: {error.strerror or error}"
        raise InputError(f"{problem}; mend the cause and run it again: what was restored is kept") from error
    return "restored"


def _find_removed(catalog: Catalog, removals: Iterable[Removal]) -> list[int]:
    """Ids of images that were removed from the gallery of a backup and are still in this one.

    An image is known by bytes and label; of several the one whose path ends most alike is removed. Where no path is the
    same, as many stay as stayed in the other gallery, and those that are out here count.
    """
    wanted: dict[LabelKey, list[Removal]] = {}
    for removal in removals:
        wanted.setdefault((removal.sha256, removal.label), []).append(removal)
    sources = catalog.sources()
    here: dict[LabelKey, list[tuple[str, CatalogRow]]] = {}
    for row in chain(list_taken_out(catalog), list_usable(catalog)) if wanted else ():
        path = os.path.join(sources[row.source].root, row.path)
        here.setdefault((row.sha256 or "", row.label), []).append((path, row))
    found = list[int]()
    for key, meant in wanted.items():
        places = [removal.path for removal in meant]
        out = [path for path, row in here.get(key, ()) if row.reason == REMOVED]
        usable = [(path, row) for path, row in here.get(key, ()) if row.reason != REMOVED]
        usable.sort(key=lambda one: max(rank_path(one[0], place) for place in places), reverse=True)
        exact = sum(path in places for path, _ in usable)  # which are the first
        most = max(exact, min(len(meant) - len(out), len(usable) - meant[0].kept))
        found += [row.id for _, row in usable[: max(most, 0)]]
    return found


def _list_lost(gallery: Path, steps: Sequence[Step]) -> list[dict[str, object]]:
    """The last decisions about images that the gallery does not have."""
    last: dict[str, Decision] = {}
    for step in steps:
        last |= step.by_subject()
    wanted = {sha256 for decision in last.values() for sha256 in _list_contents(decision)}
    with read_current_catalog(gallery) as catalog:
        here = [(sha256, label) for _, sha256, label in catalog.find_contents(wanted)]
    keys, contents = set(here), Counter(sha256 for sha256, _ in here)
    lost = list[dict[str, object]]()
    for decision in last.values():
        if isinstance(decision, LabelDecision):
            if decision.key not in keys:
                names = ("sha256", "label", "decision", "new_label", "path")
                lost.append({"kind": "label", **{name: getattr(decision, name) for name in names}})
        elif not Counter(_list_contents(decision)) <= contents:
            images = [{"sha256": image.sha256, "path": image.path} for image in decision.images]
            lost.append({"kind": "duplicates", "decision": decision.decision, "images": images})
    return lost


def _list_contents(decision: Decision) -> list[str]:
    """The SHA-256 of each image that a decision is about."""
    if isinstance(decision, LabelDecision):
        return [decision.sha256]
    return [image.sha256 for image in decision.images]
