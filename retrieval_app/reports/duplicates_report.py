"""Near-duplicates of a gallery: groups around the image to keep, their table, their page, and what is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.catalog.rows import CatalogRow
from index.duplicates.duplicate_config import HASH_BITS, DuplicateConfig
from index.duplicates.gallery_duplicates import Duplicate, Fingerprint, find_gallery_duplicates
from index.durable import check_own_files, write_csv
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.progress import Progress, no_progress
from index.sources.items import Place
from index.sources.local_source import FolderSource
from index.text import printable_path
from index.threads import map_ahead, usable_cores
from retrieval_app.reports.standalone import READ_AHEAD, draw_picture, write_document

_COLUMNS = (
    "group", "role", "id", "path", "source", "label", "similarity", "hash_distance", "same_bytes", "size_bytes",
    "indexed",
)  # fmt: skip
TABLE_NAME, PAGE_NAME = "duplicates.csv", "duplicates.html"
_FORMULA_STARTS = tuple("=+-@\t\r\n")
SIDE = 192
"""Longest side of the pictures, in pixels."""
CONTENTS_SHOWN = FILES_SHOWN = 24
"""Of a group: different pictures, and of each of them the files that have it."""


@dataclass(frozen=True, slots=True)
class GroupedImage:
    """An image of a group.

    Attributes:
        id: of the image.
        path: below its source, undecodable bytes as surrogates.
        source: the root of that source.
        label: None without.
        sha256: of its bytes.
        size_bytes: of its bytes.
        indexed: whether a search can find it; not where it was set aside when the gallery was built.
        similarity: its cosine to the kept image; None where unknown, and of the kept image.
        hash_distance: bits of the perceptual hash that differ from the kept image's; None likewise.
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


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """An image and those that repeat it."""

    kept: GroupedImage
    duplicates: tuple[GroupedImage, ...]

    @property
    def images(self) -> tuple[GroupedImage, ...]:
        """The kept image, then the others."""
        return (self.kept, *self.duplicates)

    @property
    def labels(self) -> Counter[str]:
        """How many images have each label; those without one are not counted."""
        return Counter(image.label for image in self.images if image.label is not None)

    @property
    def labels_differ(self) -> bool:
        """Whether two images have different labels, so that one of these is likely wrong."""
        return len(self.labels) > 1


@dataclass(frozen=True, slots=True)
class DuplicateReport:
    """The duplicates among a gallery's `images`, the largest groups first; without `config` only equal files count.

    No image is in two groups. `places` are those of the bytes of all that are in groups, by their ids, and `kept_for`
    has the kept image's id of every image that repeats one.
    """

    gallery: str
    images: int
    config: DuplicateConfig | None
    groups: tuple[DuplicateGroup, ...]
    places: Mapping[int, Any] = field(default_factory=dict)  # of Place; reports that are cached have none
    kept_for: dict[int, int] = field(init=False, repr=False, compare=False)
    _found: dict[int, DuplicateGroup] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept_images = {image.id: group.kept.id for group in self.groups for image in group.duplicates}
        object.__setattr__(self, "kept_for", kept_images)
        found = {image.id: group for group in self.groups for image in group.images}
        object.__setattr__(self, "_found", found)

    def find(self, image_id: int) -> DuplicateGroup | None:
        """The group that an image is in."""
        return self._found.get(image_id)

    def groups_of(self, image_ids: Ids) -> Ids:
        """(n,) int64 a number for each of (n,) ids, which images that repeat each other share."""
        return np.array([self.kept_for.get(number, number) for number in image_ids.tolist()], dtype=np.int64)

    @property
    def duplicates(self) -> int:
        """Images that repeat a kept image."""
        return sum(len(group.duplicates) for group in self.groups)

    @property
    def differing(self) -> int:
        """Groups in which labels differ."""
        return sum(group.labels_differ for group in self.groups)


def read_report(gallery: Gallery, *, config: DuplicateConfig | None, progress: Progress) -> DuplicateReport:
    """The duplicates of a gallery, those set aside by its build included; without `config` equal files only.

    Labels are the given ones, and images that somebody dropped are compared too.
    """
    gallery = gallery.as_given
    images = [
        Fingerprint(row.id, row.sha256, row.phash, labelled=row.label is not None, kept_id=row.kept_id)
        for row in _images(gallery)
        if row.sha256 is not None
    ]
    view = gallery.by(gallery.manifest.answers_by[-1])  # what tells pictures best
    picture = gallery.manifest.picture
    if config is not None:
        config = config.settle(None if picture is None else picture["threshold"])
    found = find_gallery_duplicates(images, view.vectors, config=config, progress=progress)
    wanted = {number for pair in found for number in (pair.id, pair.kept_id)}
    rows = {row.id: row for row in _images(gallery) if row.id in wanted}
    places = {row.id: replace(gallery.sources[row.source].locate(row), sha256=row.sha256) for row in rows.values()}
    return DuplicateReport(gallery.name, len(images), config, tuple(_group(gallery, found, rows)), places)


def _images(gallery: Gallery) -> Iterator[CatalogRow]:
    with gallery.catalog() as catalog:
        for status in ("indexed", "duplicate"):
            yield from catalog.rows(status=status)


def _group(
    gallery: Gallery, duplicates: Sequence[Duplicate], rows: Mapping[int, CatalogRow]
) -> list[DuplicateGroup]:
    """The largest groups first; in each, equal files first, then by falling similarity."""
    by_kept_id: dict[int, list[Duplicate]] = {}
    for found in duplicates:
        by_kept_id.setdefault(found.kept_id, []).append(found)
    groups = []
    for kept_image, members in sorted(by_kept_id.items(), key=lambda item: (-len(item[1]), item[0])):
        members.sort(key=lambda found: (not found.same_bytes, -(found.similarity or 0), found.id))
        images = tuple(_grouped_image(gallery, rows[found.id], found) for found in members)
        groups.append(DuplicateGroup(_grouped_image(gallery, rows[kept_image], None), images))
    return groups


def _grouped_image(gallery: Gallery, row: CatalogRow, found: Duplicate | None) -> GroupedImage:
    return GroupedImage(
        id=row.id,
        path=row.path,
        source=gallery.sources[row.source].root,
        label=row.label,
        sha256=row.sha256 or "",
        size_bytes=row.size_bytes,
        indexed=row.status == "indexed",
        similarity=None if found is None else found.similarity,
        hash_distance=None if found is None else found.hash_distance,
    )


def check_duplicates_folder(out: Path) -> None:
    """Refuse a folder in which somebody else's files have the names of the table or the page."""
    check_own_files(out, (TABLE_NAME, PAGE_NAME), header=_COLUMNS[:3])


def write_duplicates(
    gallery: Gallery, out: Path, *, config: DuplicateConfig | None, limit: int, begin: Callable[[str], Progress]
) -> tuple[dict[str, Any], str]:
    """Write the table and the page of a gallery's duplicates; the report without its groups, and the same for people.

    Args:
        config: as of `read_report`.
        limit: groups on the page.
        begin: gives the progress of a step.
    """
    for folder in (gallery.path, *(Path(s.root) for s in gallery.sources.values() if isinstance(s, FolderSource))):
        if out.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"--out {printable_path(str(out))} lies inside {printable_path(str(folder))}, where the gallery or its "
                "images are; choose a place beside it"
            )
    check_duplicates_folder(out)
    report = read_report(gallery, config=config, progress=begin("comparing"))
    table, page = out / TABLE_NAME, out / PAGE_NAME
    out.mkdir(parents=True, exist_ok=True)
    write_table(report, table)
    shown = write_duplicates_page(report, page, limit=limit, progress=begin("page"))
    document = {
        "gallery": report.gallery,
        "images": report.images,
        "groups": len(report.groups),
        "duplicates": report.duplicates,
        "duplicate_bytes": sum(image.size_bytes for group in report.groups for image in group.duplicates),
        "groups_with_different_labels": report.differing,
        "config": None if report.config is None else asdict(report.config),
        "shown": shown,
        "files": [str(table), str(page)],
    }
    return document, format_report(report, out=out, shown=shown)


def write_table(report: DuplicateReport, path: Path) -> None:
    """Write all groups as CSV, a row an image.

    `similarity` and `hash_distance` are to the kept image, empty where unknown. A path or label that a spreadsheet
    would take for a formula has an apostrophe before it; undecodable bytes stay what they are.
    """
    write_csv(path, _COLUMNS, _table_rows(report))


def _table_rows(report: DuplicateReport) -> Iterator[list[object]]:
    for number, group in enumerate(report.groups, start=1):
        for image in group.images:
            role, same = "duplicate", _word(image.sha256 == group.kept.sha256)
            if image is group.kept:
                role, same = "keep", ""
            similarity = None if image.similarity is None else round(image.similarity, 6)
            yield [
                number, role, image.id, guard_cell(image.path), guard_cell(image.source),
                guard_cell(image.label or ""), similarity,
                image.hash_distance, same, image.size_bytes, _word(image.indexed),
            ]  # fmt: skip


def guard_cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _word(value: bool) -> str:
    return "yes" if value else "no"


def format_report(report: DuplicateReport, *, out: Path, shown: int) -> str:
    """The report for people."""
    groups, differing = len(report.groups), report.differing
    lines = [
        f"{printable_path(report.gallery)}: {report.images:,} images; {groups:,} groups of duplicates, in which "
        f"{report.duplicates:,} images repeat another one"
    ]
    if differing:
        have = "group has" if differing == 1 else "groups have"
        lines.append(f"{differing:,} {have} different labels: one of them is likely wrong")
    lines.append(f"written to {printable_path(str(out))}: duplicates.csv, duplicates.html")
    if shown < groups:
        lines.append(
            f"duplicates.html shows {shown:,} of the groups: different labels first, then the largest (--limit)"
        )
    return "\n".join(lines)


def write_duplicates_page(
    report: DuplicateReport, out: Path, *, limit: int, progress: Progress = no_progress
) -> int:
    """Write the page into one HTML file; how many groups are on it.

    A picture that cannot be read any more, or that is not the one of the gallery, is shown as a placeholder.

    Args:
        out: the file; it is replaced in one step.
        limit: most groups shown: those whose labels differ before others, and the largest of them.

    Raises:
        InputError: the file cannot be written.
    """
    order = sorted(
        enumerate(report.groups, start=1), key=lambda numbered: (not numbered[1].labels_differ, numbered[0])
    )
    groups = dict(sorted(order[:limit]))
    write_document(
        out, "duplicates.html", report=report, shown=groups.values(),
        groups=_draw_groups(groups, report.places, progress), hash_bits=HASH_BITS, files_shown=FILES_SHOWN,
    )  # fmt: skip
    return len(groups)


@dataclass(frozen=True, slots=True)
class _Content:
    """A picture of a group and the files that have it: WebP in base64, or in words why there is none."""

    files: Sequence[GroupedImage]
    picture: str
    problem: str


def _draw_groups(
    groups: Mapping[int, DuplicateGroup], places: Mapping[int, Place], progress: Progress
) -> Iterator[tuple[int, DuplicateGroup, list[_Content], int]]:
    """(number, group, pictures to show, how many pictures are not shown)."""
    contents: dict[int, list[list[GroupedImage]]] = {}
    for number, group in groups.items():
        by_content: dict[str, list[GroupedImage]] = {}  # the kept image's comes first
        for image in group.images:
            by_content.setdefault(image.sha256, []).append(image)
        contents[number] = list(by_content.values())
    wanted = (places[files[0].id] for found in contents.values() for files in found[:CONTENTS_SHOWN])
    with closing(
        map_ahead(partial(draw_picture, side=SIDE), wanted, workers=usable_cores(), ahead=READ_AHEAD)
    ) as pictures:
        for done, (number, found) in enumerate(contents.items(), start=1):
            shown = [_Content(files, *next(pictures)) for files in found[:CONTENTS_SHOWN]]
            yield number, groups[number], shown, len(found) - len(shown)
            progress(done, len(groups))


def find_duplicate_groups(gallery: Gallery, progress: Progress = no_progress) -> DuplicateReport:
    """The images that repeat another one under the default thresholds; groups of different labels come first."""
    report = read_report(gallery, config=DuplicateConfig(), progress=progress)
    groups = sorted(report.groups, key=lambda group: not group.labels_differ)  # of these the largest first
    return replace(report, groups=tuple(groups), places={})
