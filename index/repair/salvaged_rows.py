"""The rows of a damaged catalogue that can still be read, one by one where a page of them cannot."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.catalog.rows import COLUMNS, STATUSES
from index.sources.source import ImageSource

_FAILURES = 2_000  # reads, before the rest is given up
_ROWS_AT_ONCE = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAMES = COLUMNS.split(", ")


@dataclass(slots=True)
class SalvagedRows:
    """What was read: `sources` as (id, kind, location), `settings`, and `images` as the columns of a catalogue."""

    sources: list[tuple[int, str, bytes]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    images: list[tuple[Any, ...]] = field(default_factory=list)

    def add_missing(self, older: SalvagedRows, *, members: Ids | None) -> None:
        """Take over rows of an older catalogue that could not be read here, of members only where these are known."""
        known = {row[0] for row in self.images} | {(row[1], row[2]) for row in self.images}
        for row in older.images:
            is_member = members is None or bool(np.isin(row[0], members))
            if row[0] not in known and (row[1], row[2]) not in known and is_member:
                self.images.append(row)
        self.settings = {**older.settings, **self.settings}

    def set_sources(self, sources: Iterable[ImageSource]) -> None:
        """Take the sources that a person named."""
        self.sources = [(n, source.kind, os.fsencode(source.location)) for n, source in enumerate(sources, 1)]


def read_salvaged(path: Path, *, until: int) -> SalvagedRows:
    """What can be read of a catalogue, up to an id; nothing where SQLite cannot open it at all."""
    found = SalvagedRows()
    if not path.is_file():
        return found
    # Without its sources no row says where its image is, so an error there ends it.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA cell_size_check = ON")
        found.sources = [
            row
            for row in connection.execute("SELECT id, kind, location FROM sources ORDER BY id")
            if (type(row[0]), type(row[1]), type(row[2])) == (int, str, bytes)
        ]
        numbers = {number for number, _, _ in found.sources}
        found.settings = dict(_read_settings(connection))
        found.images = [row for row in _read_images(connection, until) if _is_row(row, sources=numbers)]
    return found


def _read_settings(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    try:
        rows = connection.execute("SELECT name, value FROM settings").fetchall()
    except sqlite3.Error:
        return []
    return [(name, value) for name, value in rows if isinstance(name, str) and isinstance(value, str)]


def _read_images(connection: sqlite3.Connection, until: int) -> Iterator[tuple[Any, ...]]:
    query = f"SELECT {COLUMNS} FROM images WHERE id BETWEEN ? AND ? ORDER BY id"
    left, failures = [(1, until)], 0
    while left and failures < _FAILURES:
        first, last = left.pop()
        if last - first >= _ROWS_AT_ONCE:
            middle = first + _ROWS_AT_ONCE - 1
            left.append((middle + 1, last))
            last = middle
        try:
            yield from connection.execute(query, (first, last)).fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            failures += 1
            if first < last:
                middle = (first + last) // 2
                left += [(middle + 1, last), (first, middle)]


def _is_row(values: tuple[Any, ...], *, sources: set[int]) -> bool:
    """Whether values are such as a catalogue has."""
    row = dict(zip(_NAMES, values, strict=True))
    return (
        all(isinstance(row[name], int) for name in ("id", "source", "size_bytes", "mtime_ns"))
        and all(row[name] is None or isinstance(row[name], int) for name in ("starts_at", "phash", "keeper"))
        and all(
            row[name] is None or isinstance(row[name], str) for name in ("reason", "detail", "label", "metadata")
        )
        and (row["archive"] is None or isinstance(row["archive"], bytes))
        and row["source"] in sources
        and row["status"] in STATUSES
        and isinstance(row["path"], bytes)
        and b"\0" not in row["path"]
        and _is_hash(row["sha256"], required=row["status"] in ("indexed", "duplicate"))
    )


def _is_hash(value: Any, *, required: bool) -> bool:
    return not required if value is None else isinstance(value, str) and _SHA256.fullmatch(value) is not None


def remembered_rows(values: dict[str, Any]) -> SalvagedRows:
    """Sources and settings as a version's mark remembers them; no image."""
    sources = [pair for pair in values.get("sources", []) if isinstance(pair, list) and len(pair) == 2]
    settings = values.get("settings", {})
    return SalvagedRows(
        sources=[
            (number, str(kind), os.fsencode(str(location))) for number, (kind, location) in enumerate(sources, 1)
        ],
        settings={str(name): str(value) for name, value in settings.items()} if isinstance(settings, dict) else {},
    )
