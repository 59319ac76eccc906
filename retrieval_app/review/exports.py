"""Downloads: the labels and the duplicates with people's decisions applied, as CSV; chosen images as CSV or ZIP."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from index.catalog.rows import CatalogRow
from index.errors import ImageError, InputError, UnknownImageError
from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, LabelDecision, LabelKey, can_be_named, encode_labels
from index.text import printable_path, valid_text
from retrieval_app.reports.duplicates_report import guard_cell
from retrieval_app.review.places import (
    hide_folder,
    hide_folders,
    locate_image,
    name_source,
    shorten_path,
    strip_folders,
)
from retrieval_app.review.subjects import (
    DUPLICATES,
    DuplicateDecision,
    Subject,
    name_group,
    read_all_subjects,
    read_known_subjects,
)

OUTCOMES = ("kept", "changed", "dropped", "unlabelled", "in-archives", "unnamable")
"""What becomes of an image in a label file: its row has the given label, or another one; or it is left out because
somebody decided so, has no label, is in an archive, which training does not read, or has a path that UTF-8 cannot
say."""
_KEPT, _CHANGED, _DROPPED, _UNLABELLED, _ARCHIVED, _UNNAMABLE = OUTCOMES

Decisions = Mapping[LabelKey, LabelDecision]
"""As `ReviewStore.label_decisions` gives them."""
_HEADER = ("path", "decision", "group")
Render = Callable[[int], bytes]
"""The JPEG of an image, by its id, from re-encoded pixels; raises ImageError or InputError where there is none."""

MAX_ROWS = 5000
MAX_PICTURES = 1000  # in a ZIP: a browser holds it whole until it is saved
_MAX_PICTURE_BYTES = 1 << 30
_COLUMNS = ("id", "path", "label", "given_label", "source", "metadata")
_BLOCK_ROWS = 1000
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_STEM_CHARACTERS = 60
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)


def stream_label_file(
    gallery: Gallery, decisions: Decisions, *, counts: Counter[str], folders: bool = True
) -> Iterator[bytes]:
    """The file in blocks of rows: absolute paths, so that it can be kept anywhere, or those within the sources.

    The images of each of the `OUTCOMES` are added to `counts` on the way.
    """
    return encode_labels(_label_rows(gallery, decisions, counts=counts, folders=folders))


def _label_rows(
    gallery: Gallery, decisions: Decisions, *, counts: Counter[str], folders: bool
) -> Iterator[tuple[str, str]]:
    """(path, label) of the usable images that have one, those set aside as duplicates included."""
    with gallery.as_given.catalog() as catalog:
        for status in ("indexed", "duplicate"):
            for row in catalog.rows(status=status):
                path = locate_image(gallery, row, folders=folders)
                outcome, label = _choose_label(row, decisions)
                if outcome in (_KEPT, _CHANGED) and row.archive is not None:
                    outcome = _ARCHIVED
                elif outcome in (_KEPT, _CHANGED) and not can_be_named(path):
                    outcome = _UNNAMABLE
                counts[outcome] += 1
                if outcome in (_KEPT, _CHANGED):
                    yield path, label


def _choose_label(row: CatalogRow, decisions: Decisions) -> tuple[str, str]:
    decision = decisions.get((row.sha256 or "", row.label))
    if decision is not None and decision.decision == DROP:
        return _DROPPED, ""
    if decision is not None and decision.decision == CHANGE and decision.new_label:
        return _CHANGED, decision.new_label
    label = row.label or ""
    return (_KEPT if label.strip() else _UNLABELLED), label  # readers take white space around a label away


def stream_duplicate_file(
    gallery: Gallery, decisions: Iterable[DuplicateDecision], *, folders: bool = True
) -> Iterator[bytes]:
    """The file, a block for each group that was decided; an image is `keep` or `drop`.

    Of duplicates those that are not kept are dropped; different pictures are all kept. A group is left out where not
    all of its images are the gallery's any more, as then nobody knows whether one would be left. Paths are absolute,
    without folders those within the sources; their undecodable bytes stay what they are.
    """
    yield _encode_paths([_HEADER])
    write = partial(_write_group, shorten=None if folders else partial(shorten_path, gallery))
    unmatched = []
    for decision in decisions:
        known = read_known_subjects(gallery, (image.image_id for image in decision.images))
        images = list(known.values())
        if decision.group == name_group(image.sha256 for image in images):
            yield write(decision, images)
        else:
            unmatched.append(decision)
    for decision, images in _match_by_bytes(gallery, unmatched):
        yield write(decision, images)


def _match_by_bytes(
    gallery: Gallery, decisions: Sequence[DuplicateDecision]
) -> Iterator[tuple[DuplicateDecision, list[Subject]]]:
    """Groups whose images have other ids now, as in a gallery made anew: all of it is looked at."""
    wanted = {image.sha256 for decision in decisions for image in decision.images}
    found: dict[str, list[Subject]] = defaultdict(list)
    for subject in read_all_subjects(gallery) if wanted else ():
        if subject.sha256 in wanted:
            found[subject.sha256].append(subject)
    for decision in decisions:
        images = [image for sha256 in {i.sha256 for i in decision.images} for image in found[sha256]]
        if decision.group == name_group(image.sha256 for image in images):
            yield decision, sorted(images, key=lambda image: image.image_id)


def _write_group(
    decision: DuplicateDecision, images: Sequence[Subject], *, shorten: Callable[[str], str] | None
) -> bytes:
    kept = {image.image_id for image in images}
    if decision.decision == DUPLICATES:
        kept = set(decision.find_kept(images))
    return _encode_paths(
        (
            image.path if shorten is None else shorten(image.path),
            "keep" if image.image_id in kept else "drop",
            decision.group,
        )
        for image in images
    )


def stream_table(gallery: Gallery, ids: Sequence[int], *, folders: bool = True) -> Iterator[bytes]:
    """A CSV of at most `MAX_ROWS` images in the order given, each once, in blocks.

    Text that a spreadsheet would take for a formula has an apostrophe before it, undecodable bytes of paths are shown
    as escapes, metadata is a JSON object. Without folders a source is told by its name alone, and so
    are absolute paths in metadata.

    Raises:
        InputError: before the first block: none, too many, or an id that no member has.
    """
    return _stream_rows(gallery, _read_rows(gallery, ids, most=MAX_ROWS), folders=folders)


def stream_zip(gallery: Gallery, ids: Sequence[int], *, render: Render, folders: bool = True) -> Iterator[bytes]:
    """A ZIP of at most `MAX_PICTURES` pictures in the order given, then `list.csv`; one picture is held at a time.

    A picture that cannot be made, or that would go beyond 1 GiB, is left out; `list.csv` says why.
    """
    return _stream_pictures(gallery, _read_rows(gallery, ids, most=MAX_PICTURES), render=render, folders=folders)


def name_attachment(gallery: Gallery, suffix: str) -> str:
    """A file name that is safe in a header and on every disk, such as `shoes-selection.csv`."""
    return f"{_UNSAFE.sub('-', gallery.name).strip('-')[:_MAX_STEM_CHARACTERS] or 'gallery'}-selection{suffix}"


def _read_rows(gallery: Gallery, ids: Sequence[int], *, most: int) -> list[CatalogRow]:
    wanted = list(dict.fromkeys(ids))
    if not 1 <= len(wanted) <= most:
        raise InputError(f"1 to {most:,} images can be saved at once, got {len(wanted):,}")
    with gallery.as_given.catalog() as catalog:  # who chose a dropped image gets it
        found = catalog.find(wanted)
    if missing := [number for number in wanted if number not in found]:
        raise UnknownImageError(missing[0], gallery=printable_path(gallery.name))
    return [gallery.decided.apply(found[number]) for number in wanted]


def _stream_rows(gallery: Gallery, rows: Sequence[CatalogRow], *, folders: bool) -> Iterator[bytes]:
    yield _encode_text([_COLUMNS])
    for start in range(0, len(rows), _BLOCK_ROWS):
        yield _encode_text(_cells(gallery, row, folders=folders) for row in rows[start : start + _BLOCK_ROWS])


def _stream_pictures(
    gallery: Gallery, rows: Sequence[CatalogRow], *, render: Render, folders: bool
) -> Iterator[bytes]:
    sink, left = _Sink(), _MAX_PICTURE_BYTES
    table: list[Sequence[object]] = [(*_COLUMNS, "file", "problem")]
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for rank, row in enumerate(rows, start=1):
            name, problem = _name_picture(row, rank=rank), ""
            try:
                picture = render(row.id)
            except (ImageError, InputError) as error:
                picture, problem = b"", str(error) if folders else strip_folders(str(error))
            if len(picture) > left:
                problem = f"left out: more than {_MAX_PICTURE_BYTES:,} bytes of pictures"
            if not problem:
                left -= len(picture)
                archive.writestr(zipfile.ZipInfo(name, _EARLIEST_TIME), picture)
                yield sink.take()
            table.append((*_cells(gallery, row, folders=folders), "" if problem else name, guard_cell(problem)))
        listing = zipfile.ZipInfo("list.csv", _EARLIEST_TIME)
        archive.writestr(listing, _encode_text(table), compress_type=zipfile.ZIP_DEFLATED)
    yield sink.take()


class _Sink(io.RawIOBase):
    """What a ZIP is written into: a place that only grows, emptied as often as one likes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """All that was written since the last time."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def _name_picture(row: CatalogRow, *, rank: int) -> str:
    """A name in the ZIP: letters and digits of the file's own, after its place in the order and its id."""
    stem = os.path.splitext(os.path.basename(row.path))[0]
    safe = _UNSAFE.sub("-", stem).strip("-")[:_MAX_STEM_CHARACTERS]
    return f"pictures/{rank:04d}-{row.id}{'-' if safe else ''}{safe}.jpg"


def _cells(gallery: Gallery, row: CatalogRow, *, folders: bool) -> tuple[object, ...]:
    return (
        row.id,
        guard_cell(valid_text(row.path if folders else hide_folder(row.path))),
        guard_cell(row.label or ""),
        guard_cell(row.former_label or ""),
        guard_cell(name_source(gallery, row.source, folders=folders)),
        row.metadata_json if folders or not row.metadata_json else _write_hidden(row.metadata),
    )


def _write_hidden(metadata: Mapping[str, Any]) -> str:
    return json.dumps(hide_folders(metadata), ensure_ascii=False)


def _encode_paths(rows: Iterable[Sequence[object]]) -> bytes:
    """Rows of CSV; undecodable bytes of paths stay what they are."""
    return os.fsencode(_write_csv(rows))


def _encode_text(rows: Iterable[Sequence[object]]) -> bytes:
    return _write_csv(rows).encode("utf-8", "backslashreplace")


def _write_csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()
