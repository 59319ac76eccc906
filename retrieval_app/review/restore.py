"""Bringing a backup of what people made back into a gallery: what is there already, and is newer, stays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, TypeAlias

from index.catalog.reader import Catalog
from index.catalog.rows import REMOVED, CatalogRow
from index.durable import hash_file
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.labels.decisions import LabelDecision, LabelKey
from index.marks import read_mark
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.text import printable_path, valid_text
from index.versions.people import added_folder
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, remove_from_gallery
from index.writing.build_config import BuildConfig
from retrieval_app.review.activity_log import bring_lines
from retrieval_app.review.added_images import (
    AddedImage,
    keep_file,
    name_sources,
    read_added_rows,
    read_current_catalog,
)
from retrieval_app.review.backup import (
    USABLE,
    Removal,
    SentImage,
    list_taken_out,
    list_usable,
    open_backup,
    read_blocks,
)
from retrieval_app.review.review_store import DecidedStep, ReviewStore
from retrieval_app.review.subjects import DuplicateDecision, Subject, read_all_subjects

Decision: TypeAlias = LabelDecision | DuplicateDecision


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
        not_attached: decisions about images that the gallery does not have; they are kept.
        log_lines: lines of the log of who did what that the gallery did not have.
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
    """Bring a backup into its gallery, or another with the same images; done again it goes on where it was stopped.

    Nothing that is in the gallery is lost: of two decisions about the same the later holds, files are never replaced
    but by the bytes that their own name tells. What was taken out stays out, and is taken out of a gallery built anew.

    Raises:
        BackupError: the file is no sound backup; nothing is changed.
        GalleryError: there is no finished gallery, or another process writes it.
        ReviewError: the decisions cannot be kept.
    """
    find_version(gallery)
    counts = dict.fromkeys(("restored", "present", "removed", "in_the_way"), 0)
    there: dict[str, bool] = {}  # of images whose files are there, whether they are to be taken out
    with open_backup(file, checking) as backup:
        origin, identity = backup.manifest.gallery, read_mark(gallery)
        first_new = origin.next_id if identity is not None and origin.id == identity else None
        for image in backup.manifest.sent:
            outcome = _restore_file(backup.archive, image, gallery)
            counts[outcome] += 1
            if outcome in ("restored", "present"):
                there[image.place] = image.removed
    options: dict[str, Any] = {"config": config, "progress": progress, "begin_step": begin_step}
    indexed = _index(gallery, there, first_new=first_new, options=options)
    removals = _take_out(gallery, backup.manifest.removed, first_new=first_new, options=options)
    attached, lost = _attach_steps(Gallery.open(gallery), backup.steps, has_ids=first_new is not None)
    with closing(ReviewStore.of_gallery(gallery)) as store:
        merged = store.merge(attached)
    return RestoreReport(
        gallery=valid_text(str(gallery.resolve())),
        file=valid_text(str(file)),
        images=counts,
        indexed=indexed,
        decisions=asdict(merged),
        removals=removals,
        not_attached=[_describe_lost(decision) for decision in lost],
        log_lines=bring_lines(gallery, backup.log),
    )


def _restore_file(archive: zipfile.ZipFile, image: SentImage, gallery: Path) -> str:
    """Put a sent image into its place, and say what became of it."""
    path = added_folder(gallery) / image.place
    is_there = os.path.lexists(path)
    if image.removed and not is_there:  # in its place the next start of a server would add it again
        return "removed"
    if is_there and _hash(path) == image.sha256:
        return "present"
    if is_there and not path.name.startswith(image.sha256):
        return "in_the_way"
    try:
        kept = keep_file(gallery, read_blocks(archive, image.member), name=image.place)
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


def _index(gallery: Path, there: Mapping[str, bool], *, first_new: int | None, options: dict[str, Any]) -> int:
    """Let the gallery have the images that it has no item of, but for those taken out; the number of these.

    Those that were taken out before the backup are taken out here too, but for what was added again since.
    """
    known = read_added_rows(gallery)
    images = [AddedImage(path, None) for path in there if path not in known]
    if images:
        add_to_gallery(gallery, name_sources(gallery, images), **options)
    now = read_added_rows(gallery) if images else known
    usable = [now[path] for path in there if path in now and now[path].status in USABLE]
    new = {row.id for row in usable if row.path not in known}
    out = {
        row.id for row in usable if there[row.path] and (row.id in new or first_new is None or row.id < first_new)
    }
    if out:
        remove_from_gallery(gallery, selection=Selection(ids=tuple(sorted(out))), **options)
    return len(new - out)


def _take_out(
    gallery: Path, removals: Sequence[Removal], *, first_new: int | None, options: dict[str, Any]
) -> dict[str, int]:
    """Take photos out that had been taken out before the backup; how many, by what became of them.

    Args:
        first_new: the first id that this very gallery gave after the backup; None in another gallery.
    """
    counts = dict.fromkeys(("taken_out", "out", "added_again", "last"), 0)
    if not removals:
        return counts
    with read_current_catalog(gallery) as catalog:
        found = _find_removed(catalog, removals)
        usable = catalog.count("indexed") + catalog.count("duplicate")
    # An image that was taken out has come back to the same gallery only where somebody added it by name.
    there = tuple(number for number in found if first_new is None or number < first_new)
    counts.update(out=len(removals) - len(found), added_again=len(found) - len(there))
    if there and len(there) == usable:
        counts["last"] = len(there)  # a gallery holds at least one image
    elif there:
        remove_from_gallery(gallery, selection=Selection(ids=there), **options)
        counts["taken_out"] = len(there)
    return counts


def _find_removed(catalog: Catalog, removals: Iterable[Removal]) -> list[int]:
    """Ids of the photos of a gallery that were taken out of another one, and are not out here.

    They are known by bytes and label; of several it is the one whose path ends most alike, but never so many that fewer
    would stay than were kept where they were taken out. What is out here already is counted before the rest.
    """
    wanted: dict[LabelKey, list[Removal]] = {}
    for removal in removals:
        wanted.setdefault(removal.key, []).append(removal)
    sources, added = catalog.sources(), catalog.added_source()
    here: dict[LabelKey, dict[str, CatalogRow]] = {}
    for row in chain(list_taken_out(catalog), list_usable(catalog)):
        key = (row.sha256 or "", row.label)
        if key in wanted and row.source != added:
            here.setdefault(key, {})[os.path.join(sources[row.source].root, row.path)] = row
    found = list[int]()
    for key, meant in wanted.items():
        left = here.get(key, {})
        tails = tuple(f"/{row.path}" for row in left.values())
        surest = sorted(meant, key=lambda removal: (removal.place not in left, not removal.place.endswith(tails)))
        for removal in surest:
            place = max(left, key=partial(_count_alike, removal.place), default=None)
            if place is None or (place != removal.place and len(left) <= removal.kept):
                continue
            row = left.pop(place)
            if row.reason != REMOVED:
                found.append(row.id)
    return found


def _count_alike(path: str, other: str) -> int:
    """How many characters two paths have in common at their ends."""
    pairs = zip(reversed(path), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _attach_steps(
    gallery: Gallery, steps: Sequence[DecidedStep], *, has_ids: bool
) -> tuple[list[DecidedStep], list[Decision]]:
    """Steps that name images by the ids and paths that these have here; the last decisions about images not here.

    An image is known by its bytes, one of a label by that too; of several it is the one of the same path, then that of
    the same id, or else the one whose path ends most alike.

    Args:
        gallery: the images.
        steps: of a backup.
        has_ids: whether ids mean the same images as in the backup; a gallery that was built anew has others.
    """
    wanted = {d.sha256 for step in steps for d in step.labels}
    wanted |= {image.sha256 for step in steps for group in step.duplicates for image in group.images}
    here: dict[str, list[Subject]] = {}
    for subject in read_all_subjects(gallery) if wanted else ():
        if subject.sha256 in wanted:
            here.setdefault(subject.sha256, []).append(subject)

    def choose(same: Iterable[Subject], image_id: int | None, path: str) -> Subject | None:
        def rate(subject: Subject) -> tuple[bool, bool, int]:
            is_known = has_ids and subject.image_id == image_id
            return subject.path == path, is_known, _count_alike(subject.path, path)

        return max(same, key=rate, default=None)

    def attach_label(decision: LabelDecision) -> LabelDecision | None:
        same = (subject for subject in here.get(decision.sha256, ()) if subject.label == decision.label)
        found = choose(same, decision.image_id, decision.path)
        return None if found is None else replace(decision, image_id=found.image_id, path=found.path)

    def attach_group(decision: DuplicateDecision) -> DuplicateDecision | None:
        now: dict[int, Subject] = {}
        for image in decision.images:
            same = (subject for subject in here.get(image.sha256, ()) if subject not in now.values())
            found = choose(same, image.image_id, image.path)
            if found is None:
                return None
            now[image.image_id] = found
        keep = tuple(sorted(now[number].image_id for number in decision.keep))
        return replace(decision, images=tuple(now.values()), keep=keep)

    attached, lost = list[DecidedStep](), dict[str, Decision]()
    for step in steps:
        labels = [attach_label(decision) for decision in step.labels]
        groups = [attach_group(decision) for decision in step.duplicates]
        for (name, before), found in zip(step.by_subject().items(), [*labels, *groups], strict=True):
            lost.pop(name, None)
            if found is None:
                lost[name] = before
        attached.append(
            replace(
                step,
                labels=tuple(new or old for new, old in zip(labels, step.labels, strict=True)),
                duplicates=tuple(new or old for new, old in zip(groups, step.duplicates, strict=True)),
            )
        )
    return attached, list(lost.values())


def _describe_lost(decision: Decision) -> dict[str, object]:
    """A decision without its images, for people."""
    if isinstance(decision, LabelDecision):
        values = asdict(decision)
        return {"kind": "label"} | {
            name: values[name] for name in ("sha256", "label", "decision", "new_label", "path")
        }
    images = [{"sha256": image.sha256, "path": image.path} for image in decision.images]
    return {"kind": "duplicates", "decision": decision.decision, "images": images}
