"""The page that shows duplicates: one HTML file without a script, which asks nobody for anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from index.duplicates.duplicate_config import HASH_BITS
from index.progress import Progress, no_progress
from index.sources.items import Place
from index.threads import map_ahead, usable_cores
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage
from retrieval_app.reports.inline_pictures import draw_picture
from retrieval_app.reports.standalone import draw_document, write_document

SIDE = 192
"""Longest side of the pictures, in pixels."""
CONTENTS_SHOWN = FILES_SHOWN = 24
"""Of a group: different pictures, and of each of them the files that have it."""
READ_AHEAD = 64


Numbered = dict[int, DuplicateGroup]


def write_duplicates_page(
    report: DuplicateReport, out: Path, *, limit: int, progress: Progress = no_progress
) -> int:
    """Write the page into one HTML file; how many groups are on it.

    A picture that cannot be read any more, or that is not the one of the gallery, is shown as a placeholder.

    Args:
        report: the duplicates.
        out: the file; it is replaced in one step.
        limit: most groups shown: those whose labels differ before others, and the largest of them.
        progress: told (done, total) of the groups.

    Raises:
        InputError: the file cannot be written.
    """
    groups = _choose_groups(report.groups, limit=limit)
    write_document(
        draw_document(
            "duplicates.html",
            styles=("core/base.css", "reports/duplicates.css"),
            report=report,
            shown=groups.values(),
            groups=_draw_groups(groups, report.places, progress),
            hash_bits=HASH_BITS,
            files_shown=FILES_SHOWN,
        ),
        out,
    )
    return len(groups)


@dataclass(frozen=True, slots=True)
class _Content:
    """A picture of a group and the files that have it: WebP in base64, or in words why there is none."""

    files: Sequence[GroupedImage]
    picture: str
    problem: str


def _choose_groups(groups: Sequence[DuplicateGroup], *, limit: int) -> Numbered:
    """The groups to show, in their order and with their numbers; those whose labels differ have precedence."""
    order = sorted(enumerate(groups, start=1), key=lambda numbered: (not numbered[1].labels_differ, numbered[0]))
    return dict(sorted(order[:limit]))


def _draw_groups(
    groups: Numbered, places: Mapping[int, Place], progress: Progress
) -> Iterator[tuple[int, DuplicateGroup, list[_Content], int]]:
    """(number, group, pictures to show, how many pictures are not shown)."""
    contents = {number: _gather_contents(group) for number, group in groups.items()}
    wanted = (places[files[0].id] for found in contents.values() for files in found[:CONTENTS_SHOWN])
    with closing(
        map_ahead(partial(draw_picture, side=SIDE), wanted, workers=usable_cores(), ahead=READ_AHEAD)
    ) as pictures:
        for done, (number, found) in enumerate(contents.items(), start=1):
            shown = [_Content(files, *next(pictures)) for files in found[:CONTENTS_SHOWN]]
            yield number, groups[number], shown, len(found) - len(shown)
            progress(done, len(groups))


def _gather_contents(group: DuplicateGroup) -> list[list[GroupedImage]]:
    """The images of a group, those of equal files together; the kept image's come first."""
    contents: dict[str, list[GroupedImage]] = {}
    for image in group.images:
        contents.setdefault(image.sha256, []).append(image)
    return list(contents.values())
