"""Chosen images of a gallery as a table, or as a ZIP of their pictures with the table, made while they are sent."""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence

from index.catalog.rows import CatalogRow
from index.errors import ImageError, InputError, UnknownImageError
from index.gallery.gallery import Gallery
from index.text import printable_path, valid_text
from retrieval_app.reports.duplicates_report import guard_cell
from retrieval_app.review.places import hide_folder, name_source, strip_folders

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


def stream_table(gallery: Gallery, ids: Sequence[int], *, folders: bool = True) -> Iterator[bytes]:
    """A CSV of at most `MAX_ROWS` images in the order given, each once, in blocks.

    Text that a spreadsheet would take for a formula has an apostrophe before it, undecodable bytes of paths are shown
    as escapes, metadata is a JSON object. Without folders a source is told by its name alone.

    Raises:
        InputError: before the first block: none, too many, or an id that no member has.
    """
    return _stream_rows(gallery, _read_rows(gallery, ids, most=MAX_ROWS), folders=folders)


def stream_zip(gallery: Gallery, ids: Sequence[int], *, render: Render, folders: bool = True) -> Iterator[bytes]:
    """A ZIP of at most `MAX_PICTURES` pictures in the order given, then `list.csv`; one picture is held at a time.

    A picture that cannot be made, or that would go beyond 1 GiB, is left out; `list.csv` says why.

    Raises:
        InputError: before the first block, as `stream_table`.
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
    yield _write_rows([_COLUMNS])
    for start in range(0, len(rows), _BLOCK_ROWS):
        yield _write_rows(_cells(gallery, row, folders=folders) for row in rows[start : start + _BLOCK_ROWS])


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
        archive.writestr(listing, _write_rows(table), compress_type=zipfile.ZIP_DEFLATED)
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
        row.metadata_json,
    )


def _write_rows(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")
