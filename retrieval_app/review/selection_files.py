"""Chosen images of a gallery as a table, or as a ZIP of their pictures with the table, made while they are sent."""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from index.catalog import CatalogRow
from index.errors import ImageError, InputError, UnknownImageError
from index.gallery import Gallery
from index.images import printable_path, valid_text

Render = Callable[[int], bytes]
"""The JPEG of an image, by its id, from re-encoded pixels; raises ImageError or InputError where there is none."""

_COLUMNS = ("id", "path", "label", "score", "source", "metadata")
_BLOCK_ROWS = 1000
_FORMULA_STARTS = tuple("=+-@\t\r\n")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_STEM_CHARACTERS = 60
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ExportLimits:
    """How much is sent at most: rows of a table, and pictures and their bytes in a ZIP."""

    max_rows: int = 10_000
    max_pictures: int = 2_000
    max_picture_bytes: int = 1 << 30


DEFAULT_LIMITS = ExportLimits()


def stream_table(
    gallery: Gallery,
    ids: Sequence[int],
    *,
    scores: Mapping[int, float] | None = None,
    limits: ExportLimits = DEFAULT_LIMITS,
) -> Iterator[bytes]:
    """A CSV of the images in the order given, in blocks; each once, with its score where there is one.

    Text that a spreadsheet would take for a formula has an apostrophe before it, undecodable bytes of paths are shown
    as escapes, metadata is a JSON object.

    Raises:
        InputError: before the first block: none, too many, or an id that no member has.
    """
    rows = _read_rows(gallery, ids, most=limits.max_rows)
    return _stream_rows(gallery, rows, scores=scores or {})


def stream_zip(
    gallery: Gallery,
    ids: Sequence[int],
    *,
    render: Render,
    scores: Mapping[int, float] | None = None,
    limits: ExportLimits = DEFAULT_LIMITS,
) -> Iterator[bytes]:
    """A ZIP of the images' pictures in the order given, then `list.csv`, holding one picture in memory at a time.

    A picture that cannot be made, or that would go beyond the bytes allowed, is left out; `list.csv` says why.

    Raises:
        InputError: before the first block, as `stream_table`.
    """
    rows = _read_rows(gallery, ids, most=limits.max_pictures)
    return _stream_pictures(gallery, rows, render=render, scores=scores or {}, limits=limits)


def name_attachment(gallery: Gallery, suffix: str) -> str:
    """A file name that is safe in a header and on every disk, such as `shoes-selection.csv`."""
    return f"{_UNSAFE.sub('-', gallery.name).strip('-')[:_MAX_STEM_CHARACTERS] or 'gallery'}-selection{suffix}"


def _read_rows(gallery: Gallery, ids: Sequence[int], *, most: int) -> list[CatalogRow]:
    wanted = list(dict.fromkeys(ids))
    if not 1 <= len(wanted) <= most:
        raise InputError(f"1 to {most:,} images can be saved at once, got {len(wanted):,}")
    with gallery.catalog() as catalog:
        found = catalog.find(wanted)
    if missing := [number for number in wanted if number not in found]:
        raise UnknownImageError(missing[0], gallery=printable_path(gallery.name))
    return [found[number] for number in wanted]


def _stream_rows(gallery: Gallery, rows: Sequence[CatalogRow], *, scores: Mapping[int, float]) -> Iterator[bytes]:
    yield _write_rows([_COLUMNS])
    for start in range(0, len(rows), _BLOCK_ROWS):
        yield _write_rows(_cells(gallery, row, scores) for row in rows[start : start + _BLOCK_ROWS])


def _stream_pictures(
    gallery: Gallery,
    rows: Sequence[CatalogRow],
    *,
    render: Render,
    scores: Mapping[int, float],
    limits: ExportLimits,
) -> Iterator[bytes]:
    sink, left = _Sink(), limits.max_picture_bytes
    table: list[Sequence[object]] = [(*_COLUMNS, "file", "problem")]
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for rank, row in enumerate(rows, start=1):
            name, problem = _name_picture(row, rank=rank), ""
            try:
                picture = render(row.id)
            except (ImageError, InputError) as error:
                picture, problem = b"", str(error)
            if len(picture) > left:
                problem = f"left out: more than {limits.max_picture_bytes:,} bytes of pictures"
            if not problem:
                left -= len(picture)
                archive.writestr(zipfile.ZipInfo(name, _EARLIEST_TIME), picture)
                yield sink.take()
            table.append((*_cells(gallery, row, scores), "" if problem else name, _guard(problem)))
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


def _cells(gallery: Gallery, row: CatalogRow, scores: Mapping[int, float]) -> tuple[object, ...]:
    score = scores.get(row.id)
    return (
        row.id,
        _guard(valid_text(row.path)),
        _guard(row.label or ""),
        None if score is None else round(score, 6),
        _guard(gallery.roots[row.source]),
        row.metadata_json,
    )


def _guard(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _write_rows(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")
