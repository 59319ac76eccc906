"""Near-duplicate groups of a gallery: report and CSV table."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.duplicates.duplicate_config import MAX_HASH_DISTANCE, DuplicateConfig
from index.duplicates.near_duplicates import Fingerprint, find_gallery_duplicates, measure_pairs, resolve_limits
from index.durable import check_own_files, write_csv
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.image_groups import ImageGroups
from index.images.preprocess import hamming_distances
from index.labels.decisions import name_group
from index.progress import Progress, no_progress
from index.sources.local_source import find_folder_around
from index.text import printable_path

_COLUMNS = (
    "group",
    "role",
    "id",
    "path",
    "source",
    "label",
    "similarity",
    "hash_distance",
    "same_bytes",
    "size_bytes",
    "indexed",
)
NEAR = DuplicateConfig()
_LISTED = 20  # groups on the screen
TABLE_NAME = "duplicates.csv"
_FORMULA_STARTS = tuple("=+-@\t\r\n")


@dataclass(frozen=True, slots=True)
class GroupedImage:
    """An image of a group, by its path below the root of its source; not `indexed` where the build left it out.

    `similarity` and `hash_distance`, in bits, are to the kept image; None where unknown, and for the kept image.
    """

    id: int
    path: str
    source: str
    label: str | None
    sha256: str
    size_bytes: int
    indexed: bool = True
    similarity: float | None = None
    hash_distance: int | None = None

    @property
    def preference(self) -> tuple[int, int]:
        """Greatest for the largest file, and of equal ones for that of the shortest name, not "copy of photo.jpg"."""
        return self.size_bytes, -len(Path(self.path).name)


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """A kept image and its near-duplicates."""

    kept: GroupedImage
    duplicates: tuple[GroupedImage, ...]

    @property
    def images(self) -> tuple[GroupedImage, ...]:
        """The kept image, then the others."""
        return (self.kept, *self.duplicates)

    @property
    def labels(self) -> Counter[str]:
        """Images by label, without unlabelled ones."""
        return Counter(image.label for image in self.images if image.label is not None)

    @property
    def labels_differ(self) -> bool:
        """Whether two images have different labels; one of these is likely wrong."""
        return len(self.labels) > 1

    def is_burst(self, images: Iterable[GroupedImage]) -> bool:
        """Whether some images look like other shots of the scene (docs/results/labels.md#copies-and-bursts)."""
        return any(map(self.is_other_shot, images))

    def is_other_shot(self, image: GroupedImage) -> bool:
        """Whether an image looks like another shot of the kept image's scene, not like a copy."""
        is_alike = image.hash_distance is not None and image.hash_distance <= MAX_HASH_DISTANCE
        return image.sha256 != self.kept.sha256 and not is_alike


@dataclass(frozen=True)
class DuplicateReport:
    """Disjoint near-duplicate groups of a gallery: those with different labels first, then larger ones."""

    gallery: str
    images: int
    config: DuplicateConfig
    groups: tuple[DuplicateGroup, ...]

    @cached_property
    def kept_for(self) -> dict[int, int]:
        """The id of the kept image by that of every near-duplicate."""
        return {image.id: group.kept.id for group in self.groups for image in group.duplicates}

    @cached_property
    def by_name(self) -> dict[str, DuplicateGroup]:
        """Groups by the names of decisions about them."""
        return {name_group(image.sha256 for image in group.images): group for group in self.groups}

    @cached_property
    def members(self) -> ImageGroups:
        """The indexed images of the groups."""
        return ImageGroups(
            (image.id, group.kept.id) for group in self.groups for image in group.images if image.indexed
        )

    @cached_property
    def _by_id(self) -> dict[int, DuplicateGroup]:
        return {image.id: group for group in self.groups for image in group.images}

    def find(self, image_id: int) -> DuplicateGroup | None:
        """Group of an image."""
        return self._by_id.get(image_id)

    def groups_of(self, image_ids: Ids) -> Ids:
        """(n,) int64 group number of each of (n,) ids."""
        return np.array([self.kept_for.get(number, number) for number in image_ids.tolist()], dtype=np.int64)

    def copies_of(self, image_ids: Ids) -> Ids:
        """(n,) int64 as `groups_of`, where other shots of the scene are alone."""
        shots = [one.id for group in self.groups for one in group.duplicates if group.is_other_shot(one)]
        return np.where(np.isin(image_ids, shots), image_ids, self.groups_of(image_ids))

    @property
    def differing(self) -> int:
        """Number of groups whose labels differ."""
        return sum(group.labels_differ for group in self.groups)


def find_undropped(gallery: Gallery, group: DuplicateGroup) -> list[GroupedImage]:
    """The images of a group without those that decisions drop, with their decided labels."""
    decided = gallery.decided.by_id
    images = [image for image in group.images if image.id not in decided or not decided[image.id].left_out]
    return [replace(image, label=decided[image.id].label) if image.id in decided else image for image in images]


def find_duplicate_groups(
    gallery: Gallery, progress: Progress = no_progress, *, config: DuplicateConfig = NEAR
) -> DuplicateReport:
    """Near-duplicate groups of a gallery, including images that its build left out.

    Labels are the given ones; images that a decision drops are compared too. In a group equal files come first, then
    the others by descending similarity.
    """
    gallery = gallery.without_decisions
    with gallery.catalog() as catalog:
        images = [
            Fingerprint(row.id, row.sha256, row.phash, labelled=row.label is not None, kept_id=row.kept_id)
            for status in ("indexed", "duplicate")
            for row in catalog.rows(status=status)
            if row.sha256 is not None
        ]
        view, copy = gallery.view(gallery.manifest.similarity[-1]), gallery.manifest.copy
        threshold = None if copy is None else copy["threshold"]
        config = resolve_limits(config, copy_threshold=threshold, catalog=catalog, read=view.vectors)
    kept_for = find_gallery_duplicates(images, view.vectors, config=config, progress=progress)
    prints = {image.id: image for image in images}
    # An image that the build left out has no vector.
    pairs = [pair for pair in kept_for.items() if all(prints[number].kept_id is None for number in pair)]
    ids, kept_ids = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    similarities = dict(zip(ids.tolist(), measure_pairs(ids, kept_ids, view.vectors).tolist(), strict=True))
    with gallery.catalog() as catalog:
        rows = {row.id: row for row in catalog.rows_of({*kept_for, *kept_for.values()})}

    def describe(number: int, kept_id: int) -> GroupedImage:
        row, phash, other = rows[number], prints[number].phash, prints[kept_id].phash
        distance = None
        if number != kept_id and phash is not None and other is not None:
            distance = int(hamming_distances(np.array(phash), other))
        return GroupedImage(
            id=number,
            path=row.path,
            source=gallery.sources[row.source].root,
            label=row.label,
            sha256=row.sha256 or "",
            size_bytes=row.size_bytes,
            indexed=row.status == "indexed",
            similarity=similarities.get(number),
            hash_distance=distance,
        )

    members: dict[int, list[GroupedImage]] = {}
    for number, kept_id in kept_for.items():
        members.setdefault(kept_id, []).append(describe(number, kept_id))
    groups = []
    for kept_id, found in members.items():
        same, kept = rows[kept_id].sha256, describe(kept_id, kept_id)
        found = sorted(found, key=lambda image: (image.sha256 != same, -(image.similarity or 0), image.id))
        groups.append(DuplicateGroup(kept, tuple(found)))
    return DuplicateReport(gallery.name, len(images), config, _in_order(groups))


def _in_order(groups: Iterable[DuplicateGroup]) -> tuple[DuplicateGroup, ...]:
    return tuple(sorted(groups, key=lambda group: (not group.labels_differ, -len(group.duplicates), group.kept.id)))


def check_duplicates_folder(out: Path) -> None:
    """Refuse a folder in which another file has the name of the table."""
    check_own_files(out, (TABLE_NAME,), header=_COLUMNS[:3])


def write_duplicates(
    gallery: Gallery, out: Path | None, *, config: DuplicateConfig, progress: Progress
) -> tuple[dict[str, Any], str]:
    """Write the table of near-duplicates; returns the report as JSON and text, which lists groups without `out`."""
    if out is not None:
        if (folder := find_folder_around(out, gallery.path, gallery.sources.values())) is not None:
            raise InputError(
                f"--out {printable_path(out)} lies inside {printable_path(folder)}, where the gallery or its "
                "images are; choose a place beside it"
            )
        check_duplicates_folder(out)
    report = find_duplicate_groups(gallery, progress, config=config)
    groups, bursts = [], 0
    for group in report.groups:
        images = find_undropped(gallery, group)
        bursts += len(images) > 1 and group.is_burst(images)
        if images and images[0].id != group.kept.id:  # the similarities are to an image that is gone
            images = [replace(image, similarity=None, hash_distance=None) for image in images]
        if len(images) > 1:
            groups.append(DuplicateGroup(images[0], tuple(images[1:])))
    report = replace(report, images=report.images - len(gallery.decided.left_out), groups=_in_order(groups))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_csv(out / TABLE_NAME, _COLUMNS, _table_rows(report))
    duplicates = [image for group in report.groups for image in group.duplicates]
    document = {
        "gallery": report.gallery,
        "images": report.images,
        "groups": len(report.groups),
        "duplicates": len(duplicates),
        "duplicate_bytes": sum(image.size_bytes for image in duplicates),
        "groups_with_different_labels": report.differing,
        "bursts": bursts,
        "config": asdict(report.config),
        "files": [] if out is None else [str(out / TABLE_NAME)],
    }
    lines = [
        f"{printable_path(report.gallery)}: {report.images:,} images; {len(report.groups):,} groups with "
        f"{len(duplicates):,} near-duplicates"
    ]
    if report.differing:
        have = "group has" if report.differing == 1 else "groups have"
        lines.append(f"{report.differing:,} {have} different labels: one of them is likely wrong")
    if bursts:
        groups_are = "group is a burst" if bursts == 1 else "groups are bursts"
        lines.append(f"{bursts:,} {groups_are}: different shots of one scene, by perceptual hashes")
    if out is None:
        return document, "\n".join([*lines, *_list_groups(report)])
    lines.append(f"written to {printable_path(str(out / TABLE_NAME))}; the view Duplicates of the page shows them")
    return document, "\n".join(lines)


def _list_groups(report: DuplicateReport) -> Iterator[str]:
    """Lines of the first groups: number, label and path of each image."""
    for number, group in enumerate(report.groups[:_LISTED], start=1):
        yield from (
            f"{number:3}  {printable_path(one.label or '(no label)')}  {printable_path(one.path)}"
            for one in group.images
        )
    if len(report.groups) > _LISTED:
        yield f"the first {_LISTED} groups are listed; --out FOLDER writes all"


def _table_rows(report: DuplicateReport) -> Iterator[list[object]]:
    """One row per image; `similarity` and `hash_distance` are to the kept image, empty where unknown."""
    for number, group in enumerate(report.groups, start=1):
        for image in group.images:
            role, same = "duplicate", _word(image.sha256 == group.kept.sha256)
            if image is group.kept:
                role, same = "first", ""  # which one to keep, a rule or a person decides
            similarity = None if image.similarity is None else round(image.similarity, 6)
            yield [
                number,
                role,
                image.id,
                guard_cell(image.path),
                guard_cell(image.source),
                guard_cell(image.label or ""),
                similarity,
                image.hash_distance,
                same,
                image.size_bytes,
                _word(image.indexed),
            ]


def guard_cell(text: str) -> str:
    """Text with an apostrophe before what a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _word(value: bool) -> str:
    return "yes" if value else "no"
