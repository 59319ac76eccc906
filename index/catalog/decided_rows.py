"""Annotations applied to a catalogue's rows: changed labels, dropped images, tags and splits.

The catalogue itself keeps what the sources gave; readers overlay what people decided.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from index.arrays import Ids
from index.catalog.rows import SPLIT, VALID_METADATA, CatalogRow, without_keys
from index.measures import MEASURES

DROPPED, SET_ASIDE = "dropped", "set_aside"
"""Statuses of images that a decision leaves out: no search finds them, but they stay in the gallery."""
_OTHERS = ", ".join(
    ("source, path, archive, starts_at, size_bytes, mtime_ns, sha256, phash, reason, detail, keeper", *MEASURES)
)


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """Given and decided label of a row; `left_out` is `DROPPED`, `SET_ASIDE`, or None where the image stays."""

    given: str | None
    label: str | None
    left_out: str | None = None


@dataclass(frozen=True)
class MarkedRows:
    """Marks of rows: sorted tags by id, and splits by id, which replace the metadata column `split`."""

    tags: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    splits: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def database(self) -> bytes:
        """Serialised SQLite database with the tables `tags` and `splits`, made once for all connections."""
        tagged = ((tag, number) for number, tags in self.tags.items() for tag in tags)
        return _serialise(
            {
                "tags (tag TEXT, id INTEGER, PRIMARY KEY (tag, id)) WITHOUT ROWID": tagged,
                "splits (id INTEGER PRIMARY KEY, split TEXT)": self.splits.items(),
            }
        )

    def attach(self, connection: sqlite3.Connection) -> None:
        """Attach the tables `tags` and `splits` to a connection, unless they are attached."""
        if connection.execute("SELECT 1 FROM pragma_database_list WHERE name = 'marks'").fetchone() is None:
            connection.execute("ATTACH ':memory:' AS marks")
            connection.deserialize(self.database, name="marks")


NO_MARKS = MarkedRows()


@dataclass(frozen=True)
class DecidedRows:
    """Rows of a catalogue that annotations change; confirmed labels are not among them.

    `left_out` are (n,) ascending ids of dropped or set aside images, `ids` (m,) ascending ids of `by_id`.
    """

    by_id: Mapping[int, DecidedRow] = field(default_factory=dict)
    marked: MarkedRows = NO_MARKS
    left_out: Ids = field(init=False, compare=False)
    ids: Ids = field(init=False, compare=False)

    def __post_init__(self) -> None:
        left_out = [number for number, row in self.by_id.items() if row.left_out is not None]
        object.__setattr__(self, "ids", np.sort(np.fromiter(self.by_id, dtype=np.int64)))
        object.__setattr__(self, "left_out", np.sort(np.array(left_out, dtype=np.int64)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the changed labels and statuses; empty without any."""
        listed = [(number, self.by_id[number].label, self.by_id[number].left_out) for number in self.ids.tolist()]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest() if listed else ""

    def __bool__(self) -> bool:
        """Whether a row's label, status or metadata differ from the catalogue; tags do not count."""
        return bool(self.by_id or self.marked.splits)

    @property
    def changed_ids(self) -> str:
        """Query for the ids of changed rows, on a connection with `overlay_rows`."""
        tables = [name for name, some in (("decided", self.by_id), ("splits", self.marked.splits)) if some]
        return " UNION ".join(f"SELECT id FROM {name}" for name in tables)

    @cached_property
    def database(self) -> bytes:
        """Serialised SQLite database with the table `decided`, made once for all connections."""
        labels = ((number, one.label, one.left_out) for number, one in self.by_id.items())
        return _serialise({"decided (id INTEGER PRIMARY KEY, new_label TEXT, left_out TEXT)": labels})

    def apply(self, row: CatalogRow) -> CatalogRow:
        found, split = self.by_id.get(row.id), self.marked.splits.get(row.id)
        if found is not None:
            status = found.left_out or row.status
            row = replace(row, label=found.label, given_label=found.given, status=status)
        if split is not None:
            row = replace(row, metadata_json=json.dumps({**row.metadata, SPLIT: split}))
        tags = self.marked.tags.get(row.id)
        return row if tags is None else replace(row, tags=tags)


NOTHING_DECIDED = DecidedRows()


def overlay_rows(
    connection: sqlite3.Connection, decided: DecidedRows, *, spoiled: bool, hidden: Sequence[str] = ()
) -> None:
    """Replace `images` on this connection by a view with the decisions, without metadata called as in `hidden`.

    `spoiled` hides invalid labels and metadata, too.
    """
    label, metadata, status, rows = "images.label", "metadata", "status", "main.images"
    if spoiled:
        label, metadata = f"CASE WHEN typeof({label}) = 'text' THEN {label} END", VALID_METADATA
    if hidden:
        metadata = without_keys(VALID_METADATA, hidden)
    if decided.by_id:
        connection.execute("ATTACH ':memory:' AS decisions")
        connection.deserialize(decided.database, name="decisions")
        label = f"CASE WHEN d.id IS NULL THEN {label} ELSE d.new_label END"
        status = "coalesce(d.left_out, status)"
        rows += " LEFT JOIN decided AS d ON d.id = images.id"  # a left join keeps ids and order
    if decided.marked.splits:
        decided.marked.attach(connection)
        split = f"json_set(coalesce({metadata}, '{{}}'), '$.{SPLIT}', s.split)"
        metadata = f"CASE WHEN s.id IS NULL THEN {metadata} ELSE {split} END"
        rows += " LEFT JOIN splits AS s ON s.id = images.id"
    connection.execute(
        f"CREATE TEMP VIEW images AS SELECT images.id AS id, {_OTHERS}, {status} AS status, {label} AS label, "
        f"{metadata} AS metadata FROM {rows}"
    )


def _serialise(tables: Mapping[str, Iterable[tuple[Any, ...]]]) -> bytes:
    """Serialised SQLite database of tables: their rows by their definitions."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for definition, rows in tables.items():
            connection.execute(f"CREATE TABLE {definition}")
            name = definition.split()[0]
            columns = len(connection.execute(f"SELECT * FROM {name}").description)
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * columns)})", rows)
        connection.commit()
        return connection.serialize()
