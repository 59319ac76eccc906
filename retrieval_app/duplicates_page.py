"""The page that shows duplicates: one HTML file without a script, which asks nobody for anything.

Names and labels are hostile: they are escaped wherever they stand, and the page's policy lets no script run and no
address be asked.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from html import escape
from pathlib import Path

from index.ahead import map_ahead, usable_cores
from index.archive_members import read_indexed
from index.duplicate_config import HASH_BITS
from index.durable import replacing
from index.errors import ImageError, InputError
from index.images import REASONS, decode_image, printable_path, valid_text
from index.progress import Progress
from retrieval_app.duplicates_look import CSS, HEADING_ICON, ICON
from retrieval_app.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage

SIDE = 192
"""Longest side of the pictures, in pixels."""
QUALITY = 70
CONTENTS_SHOWN = FILES_SHOWN = 24
"""Of a group: different pictures, and of each of them the files that have it."""
READ_AHEAD = 64


Numbered = dict[int, DuplicateGroup]


def write_duplicates_page(
    report: DuplicateReport, out: Path, *, limit: int, progress: Progress | None = None
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
    try:
        with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(_head(report) + _introduction(report, groups))
            for done, section in enumerate(_draw_groups(groups), start=1):
                file.write(section)
                if progress is not None:
                    progress(done, len(groups))
            file.write("</main>\n</body>\n</html>\n")
    except OSError as error:
        shown = printable_path(str(out))
        raise InputError(f"{shown}: the page cannot be written: {error.strerror}; choose another file") from error
    return len(groups)


def _choose_groups(groups: Sequence[DuplicateGroup], *, limit: int) -> Numbered:
    """The groups to show, in their order and with their numbers; those whose labels differ have precedence."""
    order = sorted(enumerate(groups, start=1), key=lambda numbered: (not numbered[1].labels_differ, numbered[0]))
    return dict(sorted(order[:limit]))


def _draw_groups(groups: Numbered) -> Iterator[str]:
    contents = {number: _gather_contents(group) for number, group in groups.items()}
    wanted = (files[0] for found in contents.values() for files in found[:CONTENTS_SHOWN])
    with closing(map_ahead(_draw_picture, wanted, workers=usable_cores(), ahead=READ_AHEAD)) as pictures:
        for number, found in contents.items():
            group = groups[number]
            items = [_content_item(files, next(pictures), group=group) for files in found[:CONTENTS_SHOWN]]
            yield _group_section(number, group, [*items, _more(len(found) - len(items), "picture")])


def _gather_contents(group: DuplicateGroup) -> list[list[GroupedImage]]:
    """The images of a group, those of equal files together; the keeper's come first."""
    contents: dict[str, list[GroupedImage]] = {}
    for image in group.images:
        contents.setdefault(image.sha256, []).append(image)
    return list(contents.values())


def _draw_picture(image: GroupedImage) -> str:
    """A picture as HTML, or why there is none."""
    try:
        data = read_indexed(image.place)
        if hashlib.sha256(data).hexdigest() != image.sha256:
            return _placeholder("the file has changed since it was indexed")
        picture = decode_image(data, name=image.place.name, target_side=SIDE)
    except ImageError as error:
        return _placeholder(REASONS[error.reason])
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, format="WEBP", quality=QUALITY)
    source = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img src="data:image/webp;base64,{source}" alt="{_text(image.path)}">'


def _placeholder(problem: str) -> str:
    return f'<span class="gone">{_text(problem)}</span>'


def _group_section(number: int, group: DuplicateGroup, items: Sequence[str]) -> str:
    differ, chip = "", ""
    if group.labels_differ:
        counts = " · ".join(f"{_text(label)} {count:,}" for label, count in group.labels.most_common())
        differ, chip = " differ", f'<span class="chip differing">Labels differ: {counts}</span>'
    return (
        f'<section class="group{differ}" id="group-{number}" aria-labelledby="title-{number}">'
        f'<h2 id="title-{number}"><a href="#group-{number}">Group {number:,}</a>'
        f"<span>{_count(len(group.images), 'image')}</span>{chip}</h2>"
        f'<ul class="contents">{"".join(items)}</ul></section>\n'
    )


def _content_item(files: Sequence[GroupedImage], picture: str, *, group: DuplicateGroup) -> str:
    """A picture with the files that have it."""
    first, keeps = files[0], files[0] is group.keeper
    equal = f'<span class="chip same">{len(files):,} equal files</span>' if len(files) > 1 else ""
    rows = "".join(_file_item(image, group=group) for image in files[:FILES_SHOWN])
    return (
        f'<li{" class=keeper" if keeps else ""}><div class="picture">{picture}</div>'
        f'<div><div class="measures">{_measures(first, keeps=keeps)}{equal}</div>'
        f'<ul class="files">{rows}{_more(len(files) - FILES_SHOWN, "file")}</ul></div></li>'
    )


def _measures(image: GroupedImage, *, keeps: bool) -> str:
    """How an image compares with the keeper."""
    if keeps:
        return '<span class="chip keeping">Keeper</span>'
    similarity = "<b>unknown</b>" if image.similarity is None else f"<b>{image.similarity:.3f}</b>"
    bits = (
        ""
        if image.hash_distance is None
        else f"<span>{image.hash_distance} of {HASH_BITS} hash bits differ</span>"
    )
    return f"<span>{similarity} similarity</span>{bits}"


def _file_item(image: GroupedImage, *, group: DuplicateGroup) -> str:
    if image.label is None:
        label = '<span class="chip same">no label</span>'
    else:
        odd = group.labels_differ and image.label != group.keeper.label
        label = f'<span class="chip {"differing" if odd else "label"}">{_text(image.label)}</span>'
    aside = "" if image.indexed else " · set aside"
    return (
        f'<li>{label}<span class="size">{_size(image.size_bytes)}{aside}</span>'
        f'<p class="path">{_text(image.path)}</p></li>'
    )


def _more(hidden: int, noun: str) -> str:
    return f'<li class="more">and {_count(hidden, f"more {noun}")}, in duplicates.csv</li>' if hidden > 0 else ""


def _head(report: DuplicateReport) -> str:
    policy = f"default-src 'none'; style-src {_source(CSS)}; img-src data:; base-uri 'none'; form-action 'none'"
    icon = base64.b64encode(ICON.encode()).decode("ascii")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Duplicates · {_text(report.gallery)}</title>\n"
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n"
    )


def _introduction(report: DuplicateReport, shown: Numbered) -> str:
    facts = (
        (report.images, "image", "images"),
        (len(report.groups), "group", "groups"),
        (report.duplicates, "duplicate", "duplicates"),
        (report.differing, "group with different labels", "groups with different labels"),
    )
    items = "".join(f"<li><b>{n:,}</b> {one if n == 1 else many}</li>" for n, one, many in facts)
    header = (
        f'<header class="top"><h1>{HEADING_ICON}<span>Duplicates · {_text(report.gallery)}</span></h1>'
        f'<ul class="facts">{items}</ul></header>\n'
    )
    if not shown:
        what = "No two images look alike." if report.config else "No two files are equal."
        return f'{header}<main><div class="notice"><h2>No duplicates</h2><p>{what}</p></div>\n'
    differing = sum(group.labels_differ for group in shown.values())
    return (
        f'{header}<div class="tools"><div class="line"><label class="filter">'
        f'<input type="checkbox" id="only"{"" if differing else " disabled"}>'
        f"Only groups with different labels <span>{differing:,}</span></label></div></div>\n"
        f'<div class="about-page">{"".join(f"<p>{line}</p>" for line in _explain(report, shown))}</div>\n'
        '<main class="groups">\n'
    )


def _explain(report: DuplicateReport, shown: Numbered) -> Iterator[str]:
    if report.config is None:
        yield "Images are duplicates here where their files are equal, byte by byte."
    else:
        yield (
            "Images are duplicates here where the cosine similarity of their embeddings is at least "
            f"<b>{report.config.min_similarity:g}</b> and their perceptual hashes differ in at most "
            f"<b>{report.config.max_hash_distance}</b> of {HASH_BITS} bits. Every image was compared with its "
            "group's keeper, the first of its kind."
        )
    if any(group.labels_differ for group in shown.values()):
        yield "Where the labels of a group differ, one of them is likely wrong."
    if any(not image.indexed for group in shown.values() for image in group.images):
        yield "An image that is set aside was left out when the gallery was built: no search finds it."
    if len(shown) < len(report.groups):
        yield (
            f"<b>{len(shown):,} of {len(report.groups):,} groups</b> are on this page: those with different labels "
            "before others, and the largest of them. All are in duplicates.csv."
        )


def _text(text: str) -> str:
    """A name or label as HTML text that shows what cannot be seen."""
    return escape(printable_path(valid_text(text)))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return f"{size_bytes} B"
    return f"{size_bytes / 1e3:,.0f} kB" if size_bytes < 1e6 else f"{size_bytes / 1e6:,.1f} MB"


def _source(inline: str) -> str:
    """How the policy names a style sheet that stands in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode('ascii')}'"
