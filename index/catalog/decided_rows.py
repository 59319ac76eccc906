"""Label decisions applied to a catalogue's rows: changed labels and dropped images.

The catalogue itself keeps the given labels; readers overlay the decisions.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from index.arrays import Ids
from index.catalog.rows import SOUND, CatalogRow

DROPPED = "dropped"
"""The status of a dropped image: no search finds it, but it stays in the gallery."""
_OTHERS = "source, path, archive, starts_at, size_bytes, mtime_ns, sha256, phash, reason, detail, keeper"


@dataclass(frozen=True, slots=True)
class DecidedLabel:
    """The given and the decided label of a row, or that the image was dropped."""

    given: str | None
    label: str | None
    is_dropped: bool


@dataclass(frozen=True)
class DecidedRows:
    """The rows of a catalogue that decisions change.

    Attributes:
        by_id: changed or dropped labels, not confirmed ones.
        dropped: (n,) int64 rising ids.
        ids: (m,) int64 rising ids of all.
        digest: of all decisions; empty without any.
    """

    by_id: Mapping[int, DecidedLabel] = field(default_factory=dict)
    dropped: Ids = field(init=False, compare=False)
    ids: Ids = field(init=False, compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        ids = sorted(self.by_id)
        listed = [(number, self.by_id[number].label, self.by_id[number].is_dropped) for number in ids]
        digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest() if listed else ""
        object.__setattr__(self, "ids", np.array(ids, dtype=np.int64))
        object.__setattr__(self, "dropped", np.array([row[0] for row in listed if row[2]], dtype=np.int64))
        object.__setattr__(self, "digest", digest)

    def __bool__(self) -> bool:
        return bool(self.by_id)

    @cached_property
    def database(self) -> bytes:
        """A serialised SQLite database with the table `decided`, made once for all connections."""
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("CREATE TABLE decided (id INTEGER PRIMARY KEY, new_label TEXT, dropped INTEGER)")
            connection.executemany(
                "INSERT INTO decided VALUES (?, ?, ?)",
                ((number, one.label, one.is_dropped) for number, one in self.by_id.items()),
            )
            connection.commit()
            return connection.serialize()

    def apply(self, row: CatalogRow) -> CatalogRow:
        found = self.by_id.get(row.id)
        if found is None:
            return row
        status = DROPPED if found.is_dropped else row.status
        return replace(row, label=found.label, given_label=found.given, status=status)


NOTHING_DECIDED = DecidedRows()


def overlay_rows(connection: sqlite3.Connection, decided: DecidedRows, *, spoiled: bool) -> None:
    """Shadow `images` on this connection by a view with the decisions; their ids are in a table `decided`.

    Where rows are `spoiled`, the view hides invalid metadata and labels.
    """
    label, metadata, status, rows = "images.label", "metadata", "status", "main.images"
    if spoiled:
        label, metadata = f"CASE WHEN typeof({label}) = 'text' THEN {label} END", SOUND
    if decided:
        connection.execute("ATTACH ':memory:' AS decisions")
        connection.deserialize(decided.database, name="decisions")
        label = f"CASE WHEN d.id IS NULL THEN {label} ELSE d.new_label END"
        status = f"CASE WHEN d.dropped THEN '{DROPPED}' ELSE status END"
        rows = "main.images LEFT JOIN decided AS d ON d.id = images.id"  # a row's id and order stay within reach
    connection.execute(
        f"CREATE TEMP VIEW images AS SELECT images.id AS id, {_OTHERS}, {status} AS status, {label} AS label, "
        f"{metadata} AS metadata FROM {rows}"
    )
