"""Bulk annotation: one label or tag for many images, as one step that one undo takes back."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.config_fields import as_path
from index.errors import InputError, RetrievalError, UnknownImageError
from index.filters.condition import Condition
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, OPEN, PRESENT, DecisionSource, Mark, check_label, tag_field
from index.labels.steps import Step
from index.text import printable_path
from retrieval_app.review.activity_log import record_command
from retrieval_app.review.review_store import MAX_STEP_DECISIONS, ReviewStore
from retrieval_app.review.subjects import find_subjects


class SelectionChangedError(RetrievalError):
    """There are more or fewer of something than the person saw; nothing was done."""

    def __init__(self, seen: int, now: int, *, what: str = "images") -> None:
        super().__init__(f"there are {now:,} {what} now, not the {seen:,} that were seen; look at them again")


def select_images(
    gallery: Gallery, *, ids: Sequence[int] | None = None, where: Condition | None = None, count: int | None = None
) -> Ids:
    """(N,) sorted ids of named images or of those that a filter keeps, `count` where it is given."""
    if (ids is None) == (where is None):
        raise InputError("name the images either by ids or by a condition")
    found = np.unique(np.array(ids, dtype=np.int64)) if where is None else gallery.matching_ids(where)
    if count is not None and len(found) != count:
        raise SelectionChangedError(count, len(found))
    if not len(found):
        raise InputError("no image is named" if where is None else "no image meets the condition")
    if len(found) > MAX_STEP_DECISIONS:
        raise InputError(f"at most {MAX_STEP_DECISIONS:,} images can be changed at once, these are {len(found):,}")
    return found


def set_label(
    gallery: Gallery,
    store: ReviewStore,
    ids: Ids,
    label: str | None,
    *,
    source: DecisionSource = "person",
    by: str | None = None,
) -> Step:
    """Set the label of images, also of unlabelled ones; None undoes the decisions about them.

    The `source` is `rule` where a condition chose the images, so that nobody looked at each.
    """
    subjects = find_subjects(gallery, ids.tolist()).values()
    if label is not None:
        new_label = check_label(label)
        made = [replace(subject.decide(CHANGE, new_label=new_label), source=source) for subject in subjects]
        return store.decide(made, by=by)
    decided = store.label_decisions()
    opened = [subject.decide(OPEN) for subject in subjects if subject.key in decided]
    if not opened:
        raise InputError(f"nothing was decided about the labels of these {len(ids):,} images")
    return store.decide(opened, by=by)


def tag_images(gallery: Gallery, store: ReviewStore, ids: Ids, tag: str, *, by: str | None = None) -> Step:
    """Give images a tag."""
    return store.decide(_mark_all(gallery, ids.tolist(), tag, PRESENT), by=by)


def untag_images(gallery: Gallery, store: ReviewStore, ids: Ids, tag: str, *, by: str | None = None) -> Step:
    """Remove a tag from images, and from the dropped near-duplicates from which they inherited it."""
    tagged = _find_tagged(gallery, ids.tolist(), tag)
    if not tagged:
        raise InputError(f"none of these {len(ids):,} images has the tag {printable_path(tag)}")
    mine, dropped = set(tagged), gallery.annotations.dropped_copies.items()
    copies = [number for number, (_, kept) in dropped if any(image.image_id in mine for image in kept)]
    return store.decide(_mark_all(gallery, [*tagged, *_find_tagged(gallery, copies, tag)], tag, None), by=by)


def _find_tagged(gallery: Gallery, ids: Iterable[int], tag: str) -> list[int]:
    tags = gallery.decided.marked.tags
    return [one for one in ids if tag.strip() in tags.get(one, ())]


def count_changed(gallery: Gallery, step: Step) -> int:
    """Number of members that a step about labels or marks is about: all with the same bytes, and given label."""
    keys = {one.key for one in step.labels}
    contents = {sha256 for sha256, _ in keys} | {mark.sha256 for mark in step.marks}
    with gallery.without_decisions.catalog() as catalog:
        found = [number for number, *key in catalog.find_contents(contents) if not keys or tuple(key) in keys]
    return int(np.isin(found, gallery.without_decisions.ids).sum())


def _mark_all(gallery: Gallery, ids: Iterable[int], tag: str, value: str | None) -> list[Mark]:
    name, wanted = tag_field(tag), list(ids)
    with gallery.without_decisions.catalog() as catalog:
        found = catalog.contents(wanted)
    if missing := sorted(set(wanted) - found.keys()):
        raise UnknownImageError(missing[0], gallery=printable_path(gallery.name))
    return [Mark(sha256, name, value) for sha256 in found.values()]


def drop_images(
    gallery: Gallery, store: ReviewStore, ids: Ids, *, source: DecisionSource = "person", by: str | None = None
) -> Step:
    """Leave images out of results, label files and data sets, until the step is undone."""
    subjects = find_subjects(gallery, ids.tolist()).values()
    return store.decide([replace(subject.decide(DROP), source=source) for subject in subjects], by=by)


def set_labels(
    gallery: str | Path,
    label: str | None,
    *,
    where: Condition | str | None = None,
    ids: Sequence[int] | None = None,
    drop: bool = False,
) -> int:
    """Set the label of many images of a gallery at once, or drop them; the number of images that change.

    It is a decision like those of the Labels view: an open page undoes it, and servers show it at once.

    Args:
        label: the new label, of any text; None takes back what was decided about the labels.
        where: a filter, such as `"label IS NULL AND path LIKE 'shoes/%'"`.
        ids: the images, instead of a filter; at most 100,000 at once.
        drop: leave the images out instead; `label` is None.
    """
    if drop and label is not None:
        raise InputError("a dropped image gets no label; give either a label or drop")
    condition, folder = parse_filter(where) if isinstance(where, str) else where, as_path(gallery, "gallery")
    source: DecisionSource = "person" if condition is None else "rule"
    if drop:
        return change_images(folder, partial(drop_images, source=source), what="drop-images", ids=ids, where=condition)
    if label is None and condition is not None:
        ids, condition = _find_also_left_out(folder, condition), None
    change = partial(set_label, label=label, source=source)
    return change_images(folder, change, what="set-labels", ids=ids, where=condition, label=label)


def undo_labels(gallery: Path) -> Step:
    """Take back the last step of decisions about labels, without a server; the step."""
    opened = Gallery.open(gallery)
    with closing(ReviewStore.of_gallery(opened.path)) as store:
        if (step := store.undo()) is None:
            raise InputError("no decision about labels is left to take back", at=opened.name)
    record_command(opened.path, "undo-labels", step=step.number, count=len(step.decided_labels))
    return step


def _find_also_left_out(folder: Path, where: Condition) -> list[int]:
    """Ids of the members that a filter keeps, and of images that are dropped or set aside."""
    gallery = Gallery.open(folder)
    with gallery.catalog() as catalog:
        found = np.intersect1d(catalog.matching_ids(where, status=None), gallery.without_decisions.ids).tolist()
    if not found:
        raise InputError("no image meets the condition")
    return found


def change_images(
    gallery: Path,
    change: Callable[[Gallery, ReviewStore, Ids], Step],
    *,
    what: str,
    ids: Sequence[int] | None,
    where: Condition | None,
    **details: Any,
) -> int:
    """Change images without a server, and log it as `what`; the number of images that change."""
    opened = Gallery.open(gallery)
    chosen = select_images(opened, ids=ids, where=where)
    with closing(ReviewStore.of_gallery(opened.path)) as store:
        step = change(opened, store, chosen)
    images = count_changed(opened, step)
    record_command(opened.path, what, step=step.number, count=images, **details)
    return images
