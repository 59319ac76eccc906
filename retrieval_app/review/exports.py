"""Exports: labels with the decisions applied, as CSV; chosen images as CSV or ZIP."""

import csv
import io
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from index.catalog.rows import CatalogRow
from index.errors import ImageError, InputError, UnknownImageError
from index.gallery.gallery import Gallery
from index.labels.decided_labels import LabelProbabilities
from index.labels.decision_files import can_be_named, encode_labels
from index.labels.decisions import CHANGE, GIVEN, P_RIGHT, SET_ASIDE, LabelDecision, LabelKey
from index.text import hide_folder, printable_path, valid_text
from retrieval_app.reports.duplicates_report import guard_cell
from retrieval_app.review.places import hide_folders, locate_image, name_source, strip_folders
from retrieval_app.review.subjects import list_usable

OUTCOMES = ("kept", "changed", "set-aside", "dropped", "unlabelled", "in-archives", "unnamable")
"""Outcomes of images in a label file: the row has the given or the decided label; or there is no row, since the image
was set aside or dropped, has no label, is in an archive, which training does not read, or has a path that UTF-8 cannot
hold."""
_KEPT, _CHANGED, _ASIDE, _DROPPED, _UNLABELLED, _ARCHIVED, _UNNAMABLE = OUTCOMES

Render = Callable[[int], bytes]
"""The re-encoded JPEG of an image by its id; raises ImageError or InputError."""

MAX_ROWS = 5000
MAX_ZIP_IMAGES = 1000  # a browser keeps the ZIP in memory until it is saved
_MAX_ZIP_BYTES = 1 << 30
_COLUMNS: dict[str, Callable[[Gallery, CatalogRow, bool], object]] = {
    "id": lambda gallery, row, folders: row.id,
    "path": lambda gallery, row, folders: guard_cell(valid_text(row.path if folders else hide_folder(row.path))),
    "label": lambda gallery, row, folders: guard_cell(row.label or ""),
    "given_label": lambda gallery, row, folders: guard_cell(row.former_label or ""),
    "source": lambda gallery, row, folders: guard_cell(name_source(gallery, row.source, folders=folders)),
    "metadata": lambda gallery, row, folders: (
        json.dumps(hide_folders(row.metadata), ensure_ascii=False)
        if row.metadata_json and not folders
        else row.metadata_json
    ),
}
"""Columns of the table of chosen images: the cell of a row; without `folders`, paths are shown by their last part."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_STEM_CHARACTERS = 60
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)


def stream_label_file(
    gallery: Gallery, trust: LabelProbabilities, *, counts: Counter[str], folders: bool = True
) -> Iterator[bytes]:
    """Label file in blocks, with absolute paths, or without `folders` with paths within the sources.

    It has the usable images with a label, left-out near-duplicates included, the label before decisions and the
    probability that the label is right where it is known. `counts` gets the number of images of each of the `OUTCOMES`.
    """

    def choose_rows() -> Iterator[tuple[str, str, str, str]]:
        with gallery.without_decisions.catalog() as catalog:
            for row in list_usable(catalog):
                path = locate_image(gallery, row, folders=folders)
                outcome, label = _choose_label(row, trust.decisions)
                found = gallery.decided.by_id.get(row.id)
                if found is not None and found.left_out:  # also as a near-duplicate
                    outcome = _ASIDE if found.left_out == SET_ASIDE else _DROPPED
                elif found is not None and found.label is not None and outcome == _UNLABELLED:
                    outcome, label = _CHANGED, found.label
                if outcome in (_KEPT, _CHANGED):
                    if row.archive is not None:
                        outcome = _ARCHIVED
                    elif not can_be_named(path):
                        outcome = _UNNAMABLE
                    else:
                        p_right, before = trust.of(row)
                        given = before or row.label or label
                        yield path, label, given, "" if p_right is None else f"{p_right:.4f}"
                counts[outcome] += 1

    return encode_labels(choose_rows(), more_columns=(GIVEN, P_RIGHT))


def _choose_label(row: CatalogRow, decisions: Mapping[LabelKey, LabelDecision]) -> tuple[str, str]:
    decision = decisions.get((row.sha256 or "", row.label))
    if decision is not None and decision.leaves_out:
        return _ASIDE if decision.decision == SET_ASIDE else _DROPPED, ""
    if decision is not None and decision.decision == CHANGE and decision.new_label:
        return _CHANGED, decision.new_label
    label = row.label or ""
    return (_KEPT if label.strip() else _UNLABELLED), label  # readers take white space around a label away


def encode_table(gallery: Gallery, ids: Sequence[int], *, folders: bool = True) -> bytes:
    """A CSV of at most `MAX_ROWS` images in the order given, each once.

    Text that a spreadsheet would take for a formula gets an apostrophe, undecodable bytes of paths become escapes,
    metadata is a JSON object. Without `folders` sources and absolute paths are shown by their last part.
    """
    rows = _read_rows(gallery, ids, most=MAX_ROWS)
    return _encode([list(_COLUMNS), *([read(gallery, row, folders) for read in _COLUMNS.values()] for row in rows)])


def stream_zip(gallery: Gallery, ids: Sequence[int], *, render: Render, folders: bool = True) -> Iterator[bytes]:
    """A ZIP of at most `MAX_ZIP_IMAGES` images and 1 GiB, then `list.csv`, which says what is left out and why."""
    return _stream_images(gallery, _read_rows(gallery, ids, most=MAX_ZIP_IMAGES), render=render, folders=folders)


def name_attachment(gallery: Gallery, suffix: str) -> str:
    """A file name that is safe in headers and on every disk, such as `shoes-selection.csv`."""
    return f"{_UNSAFE.sub('-', gallery.name).strip('-')[:_MAX_STEM_CHARACTERS] or 'gallery'}-selection{suffix}"


def _read_rows(gallery: Gallery, ids: Sequence[int], *, most: int) -> list[CatalogRow]:
    wanted = list(dict.fromkeys(ids))
    if not 1 <= len(wanted) <= most:
        raise InputError(f"1 to {most:,} images can be saved at once, got {len(wanted):,}")
    with gallery.without_decisions.catalog() as catalog:  # who chose a dropped image gets it
        found = catalog.find(wanted)
    if missing := [number for number in wanted if number not in found]:
        raise UnknownImageError(missing[0], gallery=printable_path(gallery.name))
    return [gallery.decided.apply(found[number]) for number in wanted]


def _stream_images(gallery: Gallery, rows: Sequence[CatalogRow], *, render: Render, folders: bool) -> Iterator[bytes]:
    sink, left = _Sink(), _MAX_ZIP_BYTES
    table: list[Sequence[object]] = [(*_COLUMNS, "file", "problem")]
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for rank, row in enumerate(rows, start=1):
            name, problem = _name_image(row, rank=rank), ""
            try:
                picture = render(row.id)
            except (ImageError, InputError) as error:
                picture, problem = b"", str(error) if folders else strip_folders(str(error))
            if len(picture) > left:
                problem = f"left out: more than {_MAX_ZIP_BYTES:,} bytes of images"
            if not problem:
                left -= len(picture)
                archive.writestr(zipfile.ZipInfo(name, _EARLIEST_TIME), picture)
                yield sink.take()
            cells = [read(gallery, row, folders) for read in _COLUMNS.values()]
            table.append((*cells, "" if problem else name, guard_cell(problem)))
        listing = zipfile.ZipInfo("list.csv", _EARLIEST_TIME)
        archive.writestr(listing, _encode(table), compress_type=zipfile.ZIP_DEFLATED)
    yield sink.take()


class _Sink(io.RawIOBase):
    """Output of a ZIP writer that is emptied between its members."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """The bytes written since the last call."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def _name_image(row: CatalogRow, *, rank: int) -> str:
    """A name in the ZIP: rank, id, and the letters and digits of the file's own name."""
    stem = os.path.splitext(os.path.basename(row.path))[0]
    safe = _UNSAFE.sub("-", stem).strip("-")[:_MAX_STEM_CHARACTERS]
    return f"images/{rank:04d}-{row.id}{'-' if safe else ''}{safe}.jpg"


def _encode(rows: Iterable[Sequence[object]]) -> bytes:
    """Rows of CSV; undecodable bytes of paths become escapes."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")
