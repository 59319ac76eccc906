"""Leaks between splits: near-duplicates, or images of one group, in several splits of a gallery."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from index.catalog.rows import SPLIT, CatalogRow
from index.duplicates.near_duplicates import KeptImages
from index.errors import InputError
from index.evaluation.groups import name_group
from index.gallery.gallery import Gallery
from index.labels.decisions import DIFFERENT, DUPLICATES, DuplicateDecision, Mark
from index.labels.steps import Step
from index.text import printable_path, valid_text
from retrieval_app.reports.duplicates_report import DuplicateReport
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_subjects

FOLDER = "folder"
"""Name of a split column that is no metadata: the first folder of the path."""
MAX_SPLITS = 100


@dataclass(frozen=True, slots=True)
class LeakImage:
    """An image of a leak, and its split."""

    id: int
    path: str
    label: str | None
    split: str


@dataclass(frozen=True, slots=True)
class Leak:
    """Images of several splits that are near-duplicates or belong to one group."""

    images: Sequence[LeakImage]
    near_duplicates: bool


@dataclass(frozen=True, slots=True)
class Leaks:
    """Leaks between the splits of the column `by`, the largest leaks first; `splits` counts images."""

    by: str
    splits: Mapping[str, int]
    items: Sequence[Leak]

    @property
    def image_ids(self) -> list[int]:
        """Ids of all images in leaks."""
        return [image.id for leak in self.items for image in leak.images]

    def to_json(self, *, limit: int) -> dict[str, Any]:
        """Counts, and the first leaks."""
        return {
            "by": self.by,
            "splits": dict(self.splits),
            "leaks": len(self.items),
            "images": len(self.image_ids),
            "items": [asdict(leak) for leak in self.items[:limit]],
        }


def find_leaks(
    gallery: Gallery, find_groups: Callable[[], DuplicateReport], *, by: str = SPLIT, different: Container[str] = ()
) -> Leaks:
    """Find near-duplicates, and images of one `group`, that differ in the column `by`; ignores `different` groups.

    `find_groups` is called once the column is known to have splits.
    """
    with gallery.catalog() as catalog:
        rows = {row.id: row for row in catalog.rows(status="indexed")}
    values = {number: value for number, row in rows.items() if (value := _value_of(row, by)) is not None}
    splits = Counter(values.values())
    if not 2 <= len(splits) <= MAX_SPLITS:
        raise InputError(
            f"{printable_path(gallery.name)}: leaks need 2 to {MAX_SPLITS} splits, but the column {printable_path(by)} "
            f"has {len(splits):,} values; choose another column (--by), or give images a split"
        )
    near = _join_groups(gallery, find_groups(), {number: rows[number] for number in values}, different=different)
    named: dict[str, list[int]] = {}
    for number, row in rows.items():
        if (name := name_group(row.metadata)) is not None:
            named.setdefault(name, []).append(number)
    items, seen = [], set[int]()
    for ids, is_near in [*((ids, True) for ids in near), *((ids, False) for ids in named.values())]:
        there = [number for number in ids if number in values and number not in seen]
        if len({values[number] for number in there}) > 1:
            seen.update(there)
            named_rows = ((rows[number], values[number]) for number in there)
            leaking = [LeakImage(row.id, valid_text(row.path), row.label, split) for row, split in named_rows]
            items.append(Leak(leaking, is_near))
    items.sort(key=lambda leak: -len(leak.images))
    return Leaks(by, dict(sorted(splits.items())), items)


def _join_groups(
    gallery: Gallery, duplicates: DuplicateReport, rows: Mapping[int, CatalogRow], *, different: Container[str]
) -> list[list[int]]:
    """Ids of near-duplicate groups, without different images; groups that share a near-duplicate pair are joined.

    A group has only the near-duplicates of its kept image. A near-duplicate of another of its images, perhaps in
    another split, is in its own group. So the images that are not kept are compared with all rows.
    """
    group_of: dict[int, list[int]] = {}
    excluded = set[int]()
    for name, group in duplicates.by_name.items():
        ids = [image.id for image in group.images]
        if name in different:
            excluded.update(ids)
        else:
            group_of |= dict.fromkeys(ids, ids)
    compared = {row.sha256: number for number, row in rows.items() if number not in excluded}
    hashed = {number: phash for number in compared.values() if (phash := rows[number].phash) is not None}
    not_kept = [number for number in hashed if number in duplicates.kept_for]
    if not_kept and duplicates.config is not None:
        view = gallery.without_decisions.view(gallery.manifest.similarity[-1])
        others = KeptImages(view.vectors, duplicates.config)
        others.hold(*np.array([*hashed.items()], dtype=np.int64).T)
        hashes = np.array([hashed[number] for number in not_kept], dtype=np.int64)
        for image, other in others.find_pairs(np.array(not_kept, dtype=np.int64), hashes):
            first, second = group_of[image], group_of.setdefault(other, [other])
            if first is not second:
                first += second
                group_of |= dict.fromkeys(second, first)
    return list({id(ids): ids for ids in group_of.values()}.values())


def find_different(store: ReviewStore) -> frozenset[str]:
    """Names of the near-duplicate groups that people decided to be different images."""
    return frozenset(name for name, one in store.duplicate_decisions().items() if one.decision == DIFFERENT)


def _value_of(row: CatalogRow, by: str) -> str | None:
    if by == FOLDER:
        folder, separator, _ = row.path.partition("/")
        return folder if separator else None
    value = row.metadata.get(by)
    return None if value in (None, "") or isinstance(value, dict | list) else str(value)


def move_leaks(gallery: Gallery, store: ReviewStore, leaks: Leaks, *, to: str, by: str | None = None) -> Step:
    """Move all images of the leaks to one split, as one step of marks; `by` is the name of the person."""
    if leaks.by != SPLIT:
        raise InputError(f"only the column {SPLIT} can be changed, not {printable_path(leaks.by)}; drop the images")
    _require(leaks, to)
    subjects = find_subjects(gallery, leaks.image_ids)
    return store.decide([Mark(subject.sha256, SPLIT, to) for subject in subjects.values()], by=by)


def drop_leaks(gallery: Gallery, store: ReviewStore, leaks: Leaks, *, value: str, by: str | None = None) -> Step:
    """Drop the images of one split from the leaks, as one step; only near-duplicates pass their label and tags on."""
    _require(leaks, value)
    decisions = []
    subjects = find_subjects(gallery, leaks.image_ids)
    for leak in leaks.items:
        kept = tuple(image.id for image in leak.images if image.split != value)
        if len(kept) < len(leak.images):
            images = tuple(subjects[image.id] for image in leak.images)
            decisions.append(DuplicateDecision(images, DUPLICATES, kept, inherits=leak.near_duplicates))
    if not decisions:
        raise InputError(f"no leak has an image of {printable_path(value)}; nothing to drop")
    return store.decide(decisions, by=by)


def _require(leaks: Leaks, value: str) -> None:
    if value not in leaks.splits:
        known = ", ".join(map(printable_path, leaks.splits))
        raise InputError(f"{printable_path(leaks.by)} has no value {printable_path(value)}; it has {known}")
    if not leaks.items:
        raise InputError("there are no leaks; nothing to do")
