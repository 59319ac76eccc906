"""Reading the catalogue of a gallery: a SQLite table with one row for every item found, and its sources."""

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from index.arrays import Ids, Mask
from index.catalog.decided_rows import NOTHING_DECIDED, DecidedRows, overlay_rows
from index.catalog.rows import COLUMNS, CatalogRow, make_row
from index.catalog.source_places import PLACES_SETTING, find_file_beside, find_places
from index.errors import GalleryDamagedError, GalleryError, InputError, ListChangedError
from index.filters.condition import TAG, Column, Condition, IsNull, Order
from index.filters.condition import list_columns as list_condition_columns
from index.filters.known_names import check_names
from index.filters.to_sql import Sql, compose, write_operand, write_sql
from index.images.file_facts import TAKEN
from index.sources.registry import make_source
from index.sources.source import ImageSource
from index.text import printable_path
from index.versions.annotations import ADDED_PLACE

ValueKind: TypeAlias = Literal["text", "truth", "number"]
_KIND = "CASE j.type WHEN 'text' THEN 'text' WHEN 'true' THEN 'truth' WHEN 'false' THEN 'truth' ELSE 'number' END"
_IS_PLAIN = "j.type IN ('text', 'integer', 'real', 'true', 'false')"
_INDEXED = "status = 'indexed'"
_ROWS_A_LOOKUP = 8  # scanned in the time of one lookup by content

VERSION = 1
TABLES = f"""
CREATE TABLE sources (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,                    -- see index.sources.registry.SOURCES
    location BLOB NOT NULL UNIQUE          -- bytes of the absolute path, or of a glob's absolute pattern
);
CREATE TABLE images (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- of the vector too; never reused
    source INTEGER NOT NULL REFERENCES sources (id),
    path BLOB NOT NULL,                    -- bytes of the '/'-separated path below the source's root
    archive BLOB,                          -- the part of the path that is the archive it lies in
    starts_at INTEGER,                     -- where it starts in the archive
    size_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    sha256 TEXT,                           -- of the bytes, once they were read
    phash INTEGER,                         -- perceptual hash, once they were decoded
    status TEXT NOT NULL CHECK (status IN ('pending', 'indexed', 'duplicate', 'skipped')),
    reason TEXT,                           -- why it was skipped, one of index.images.image_files.REASONS
    detail TEXT,
    keeper INTEGER,                        -- of a near-duplicate: the kept image
    label TEXT,
    metadata TEXT,                         -- a JSON object
    width INTEGER, height INTEGER,         -- pixels, once they were decoded, as all measures: see index.measures
    sharpness REAL, brightness REAL, contrast REAL, border REAL,
    jpeg_quality INTEGER,                  -- of JPEG files
    UNIQUE (source, path)
);
CREATE INDEX images_by_status ON images (status, id);
CREATE INDEX images_by_label ON images (label, id);
CREATE INDEX images_by_content ON images (sha256);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
_PAGE_ROWS = 4096
_LOOKED_AT = 100  # steps of SQLite between two checks of the time limit
_DAMAGES = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_FORMAT")


@contextmanager
def read_catalog(
    path: Path,
    *,
    limit_s: float | None = None,
    spoiled: bool = False,
    decided: DecidedRows = NOTHING_DECIDED,
    hidden: Sequence[str] = (),
) -> "Iterator[Catalog]":
    """Open a finished catalogue, read-only, with decisions applied, and without metadata called as in `hidden`.

    In a `spoiled` one invalid values are hidden, too.
    """
    with opened(path, query="mode=ro&immutable=1", limit_s=limit_s) as connection:
        check_version(connection)
        connection.text_factory = lambda data: data.decode("utf-8", "replace")  # another program may have written it
        if spoiled or decided or hidden:
            overlay_rows(connection, decided, spoiled=spoiled, hidden=hidden)
        is_whole_view = spoiled or bool(hidden)
        yield Catalog(connection, gallery=find_gallery(path), decided=decided, spoiled=is_whole_view)


def find_gallery(catalog: Path) -> Path | None:
    """The gallery of a catalogue, finished or in progress; None for a catalogue elsewhere."""
    folder = Path(os.path.abspath(catalog)).parent
    if folder.name == "building":
        return folder.parent
    return folder.parent.parent if folder.parent.name == "versions" else None


@contextmanager
def opened(path: Path, *, query: str, limit_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """A connection without implicit transactions; an InputError ends a statement after `limit_s` seconds."""
    shown, begun = printable_path(path), time.monotonic()
    try:
        uri = f"{path.absolute().as_uri()}?{query}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            if limit_s is not None:
                until = begun + limit_s
                connection.set_progress_handler(lambda: time.monotonic() >= until, _LOOKED_AT)
            yield connection
    except sqlite3.Error as error:
        if limit_s is not None and time.monotonic() >= begun + limit_s:
            raise InputError(
                f"this condition takes more than {limit_s:g} seconds among so many images; use fewer comparisons"
            ) from error
        if (getattr(error, "sqlite_errorname", None) or _DAMAGES[0]).startswith(_DAMAGES):
            raise GalleryDamagedError(shown, f"the catalogue cannot be used: {error}") from error
        where = "or in the system's folder for temporary files (SQLITE_TMPDIR)"
        advice = f"remove the cause there, {where}, and run the same command again: what is done is kept"
        raise GalleryError(shown, f"cannot be written or read: {error}; {advice}") from error


class Catalog:
    """An open catalogue; get one from `read_catalog`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        gallery: Path | None = None,
        decided: DecidedRows = NOTHING_DECIDED,
        spoiled: bool = False,
    ) -> None:
        self.connection = self._connection = connection
        self._gallery, self._decided, self._spoiled = gallery, decided, spoiled
        self._places: dict[int, ImageSource] | None = None
        self._moves: tuple[str, ...] = ()

    def rows(
        self, *, status: str | None = None, where: Condition | None = None, after: int = -1, limit: int | None = None
    ) -> Iterator[CatalogRow]:
        """Rows in id order, by status and filter, with ids above `after`; they may be written while it iterates."""
        wanted, values = ["id > ?"], list[str | bytes]()
        if status is not None:
            wanted.append("status = ?")
            values.append(status)
        if where is not None:
            self._check_names(where)
            kept = write_sql(where)
            wanted.append(kept.text)
            values += kept.values
        query = f"SELECT {COLUMNS} FROM images WHERE {' AND '.join(wanted)} ORDER BY id LIMIT ?"
        left = limit
        while left is None or left > 0:
            size = _PAGE_ROWS if left is None else min(left, _PAGE_ROWS)
            page = self._connection.execute(query, (after, *values, size)).fetchall()
            yield from map(self._make_row, page)
            if len(page) < size:
                return
            after, left = page[-1][0], None if left is None else left - size

    def rows_of(self, ids: Iterable[int]) -> Iterator[CatalogRow]:
        """The rows of known ids, of any status, in id order; rows may be written while it iterates."""
        left = iter(sorted(set(map(int, ids))))
        query = f"SELECT {COLUMNS} FROM images WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
        while part := list(islice(left, _PAGE_ROWS)):
            yield from map(self._make_row, self._connection.execute(query, (json.dumps(part),)).fetchall())

    def contents(self, ids: Iterable[int]) -> dict[int, str]:
        """The SHA-256 of usable rows of known ids, by id."""
        query = (
            "SELECT id, sha256 FROM images WHERE id IN (SELECT value FROM json_each(?)) "
            "AND +status IN ('indexed', 'duplicate')"
        )
        return dict(self._connection.execute(query, (json.dumps(list(ids)),)))

    def paths(self, source: int) -> Iterator[tuple[int, str]]:
        """Id and path of every row of a source; nothing may be written while it iterates."""
        for number, path in self._connection.execute("SELECT id, path FROM images WHERE source = ?", (source,)):
            yield number, os.fsdecode(path)

    def ids_below(self, source: int, path: str | None) -> list[int]:
        """Ids of a source's rows at a path, or in the folder or archive of that path; None: below its root."""
        if path is None:
            query = "SELECT id FROM images WHERE source = ? AND (path < x'2f' OR path >= x'30')"  # no leading /
            return [row[0] for row in self._connection.execute(query, (source,))]
        name = os.fsencode(path)
        query = "SELECT id FROM images WHERE source = ? AND (path = ? OR (path > ? AND path < ?))"
        return [row[0] for row in self._connection.execute(query, (source, name, name + b"/", name + b"0"))]

    def find(self, ids: Iterable[int]) -> dict[int, CatalogRow]:
        """The indexed rows of known ids, by id."""
        return {row.id: row for row in self.rows_of(ids) if row.status == "indexed"}

    def _make_row(self, values: tuple[Any, ...]) -> CatalogRow:
        return self._decided.apply(make_row(values))

    def find_contents(self, contents: Iterable[str]) -> Iterator[tuple[int, str, str | None]]:
        """Id, SHA-256 and label of usable rows by SHA-256."""
        wanted, values = set(contents), list[str]()
        # The plus keeps SQLite from using the index by status, useless here.
        query = "SELECT id, sha256, label FROM images WHERE +status IN ('indexed', 'duplicate')"
        (last_id,) = self._connection.execute("SELECT max(id) FROM main.images").fetchone()
        if len(wanted) * _ROWS_A_LOOKUP < (last_id or 0):
            query, values = f"{query} AND sha256 IN (SELECT value FROM json_each(?))", [json.dumps(list(wanted))]
        yield from (row for row in self._connection.execute(query, values) if row[1] in wanted)

    def indexed_ids(self) -> Ids:
        """(N,) int64 ids of the indexed rows in ascending order."""
        rows = self._connection.execute(f"SELECT id FROM images WHERE {_INDEXED} ORDER BY id")
        return np.fromiter(chain.from_iterable(rows), dtype=np.int64)

    def matching_ids(self, where: Condition, *, status: str | None = "indexed") -> Ids:
        """(N,) int64 ascending ids of the rows that a filter keeps, of one status or any."""
        found = self.find_matching(where, status=status)
        rows = self._connection.execute(f"{found.text} ORDER BY id", found.values)
        return np.fromiter(chain.from_iterable(rows), dtype=np.int64)

    def sorted_ids(
        self, order: Order, *, where: Condition | None = None, status: str | None = "indexed", after: int = -1
    ) -> Ids:
        """(N,) int64 ids of rows by a column, those without it last, then by id; of one status or any.

        `after` is the id that the first one follows, whether or not the filter still keeps it; from below 1 the list
        begins. A ListChangedError where it is the id of no row.
        """
        column, sign = order
        self._check_names(IsNull(column))
        every = Sql("SELECT id FROM images" + ("" if status is None else f" WHERE status = '{status}'"))
        kept = every if where is None else self.find_matching(where, status=status)
        value, direction = write_operand(column), "DESC" if sign == "-" else "ASC"
        query = compose(
            f"SELECT id FROM images WHERE id IN (SELECT {after:d} UNION ALL {{}}) "
            f"ORDER BY {{}} {direction} NULLS LAST, id",
            kept,
            value,
        )
        rows = self._connection.execute(query.text, query.values)
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
        if after < 1:
            return ids
        before = np.flatnonzero(ids == after)
        if not len(before):
            raise ListChangedError(f"the list has changed: image {after} is no longer in the gallery; begin again")
        return ids[before[0] + 1 :]

    def find_matching(self, where: Condition, *, status: str | None = "indexed") -> Sql:
        """A query for `id` of the rows that a filter keeps; else as `matching_ids`."""
        self._check_names(where)
        # The plus keeps SQLite from using the index by status; the one by label helps.
        kept = compose("{}" if status is None else f"+status = '{status}' AND {{}}", write_sql(where))
        if not self._decided or self._spoiled:
            return compose("SELECT id FROM images WHERE {}", kept)
        # Undecided rows are read from the table itself, which has an index by label.
        changed = self._decided.changed_ids
        others = compose(f"SELECT id FROM main.images WHERE id NOT IN ({changed}) AND {{}}", kept)
        decided = compose(f"SELECT id FROM images WHERE id IN ({changed}) AND {{}}", kept)
        return compose("{} UNION ALL {}", others, decided)

    def values(self, column: Column) -> Iterator[tuple[int, Any]]:
        """Id and value of the indexed rows that have one in a column, not empty; an InputError for tags."""
        if column == TAG:
            raise InputError("an image has any number of tags; name a column with one value, or label or folder")
        self._check_names(IsNull(column))
        query = compose(f"SELECT images.id, {{}} FROM images WHERE {_INDEXED}", write_operand(column))
        rows = self._connection.execute(query.text, query.values)
        return ((number, value) for number, value in rows if value not in (None, ""))

    def folders(self) -> Iterator[tuple[int, tuple[int, bytes]]]:
        """Id, and source with folder, of the indexed rows that lie in a folder or an archive."""
        for number, source, path in self._connection.execute(f"SELECT id, source, path FROM images WHERE {_INDEXED}"):
            folder, separator, _ = path.rpartition(b"/")
            if separator:
                yield number, (source, folder)

    def attach_tags(self) -> bool:
        """Put a table `tags` with `tag` and `id` on the connection; whether there are any."""
        self._decided.marked.attach(self._connection)
        return bool(self._decided.marked.tags)

    def _check_names(self, where: Condition) -> None:
        """Refuse what no row has; the table of tags is there afterwards, if it is needed."""
        if TAG in list_condition_columns(where):
            self.attach_tags()
        check_names(where, self._connection, has_decided=bool(self._decided.by_id))

    def fingerprints(self) -> tuple[Ids, Ids, Mask]:
        """Arrays over the indexed rows, by id: (N,) int64 ids, perceptual hashes, and (N,) bool: which have a label."""
        query = "SELECT id, phash, label IS NOT NULL FROM images WHERE status = 'indexed' ORDER BY id"
        table: Ids = np.array(self._connection.execute(query).fetchall(), dtype=np.int64).reshape(-1, 3)
        return table[:, 0].copy(), table[:, 1].copy(), table[:, 2] == 1

    def labels(self, *, status: str) -> list[str | None]:
        """Labels of the rows of one status, in id order."""
        query = "SELECT label FROM images WHERE status = ? ORDER BY id"
        return [row[0] for row in self._connection.execute(query, (status,))]

    def read_numbers(self, name: str) -> dict[int, float]:
        """Numbers of a column of the metadata, by the ids of indexed rows that have one."""
        path = f'$."{name}"'
        query = (
            "SELECT id, json_extract(metadata, ?1) FROM images WHERE status = 'indexed' AND metadata IS NOT NULL "
            "AND json_type(metadata, ?1) IN ('integer', 'real')"
        )
        return dict(self._connection.execute(query, (path,)).fetchall())

    def _ask(self, query: str, *values: object) -> Any:
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]

    def count(self, status: str) -> int:
        return int(self._ask("SELECT count(*) FROM images WHERE status = ?", status))

    def skipped_by_reason(self) -> dict[str, int]:
        """Counts of skipped rows by reason, in alphabetical order."""
        query = "SELECT reason, count(*) FROM images WHERE status = 'skipped' GROUP BY reason ORDER BY reason"
        return dict(self._connection.execute(query).fetchall())

    def indexed_by_source(self) -> dict[int, int]:
        """Counts of indexed rows by the number of their source."""
        query = "SELECT source, count(*) FROM images NOT INDEXED WHERE status = 'indexed' GROUP BY source"
        return dict(self._connection.execute(query).fetchall())

    def indexed_labels(self, *, limit: int) -> dict[str, Any]:
        """Counts over the indexed rows: labels (`count`), `images` with a label, and images of the `largest` labels."""
        query = (
            "SELECT label, rows, count(*) OVER (), sum(rows) OVER () FROM (SELECT label, count(*) AS rows "
            "FROM images NOT INDEXED WHERE status = 'indexed' AND label IS NOT NULL GROUP BY label) "
            "ORDER BY rows DESC, label LIMIT ?"
        )
        largest = self._connection.execute(query, (limit,)).fetchall()
        labels, labelled = largest[0][2:] if largest else (0, 0)
        return {"count": labels, "images": labelled, "largest": {label: rows for label, rows, _, _ in largest}}

    def count_orphans(self) -> int:
        """Duplicates without an indexed row that they repeat; never in a valid catalogue."""
        return int(
            self._ask(
                "SELECT count(*) FROM images d LEFT JOIN images k ON k.id = d.keeper AND k.status = 'indexed' "
                "WHERE d.status = 'duplicate' AND k.id IS NULL"
            )
        )

    def next_id(self) -> int:
        return int(self._ask("SELECT seq FROM sqlite_sequence WHERE name = 'images'") or 0) + 1

    def sources(self) -> dict[int, ImageSource]:
        """The sources by number, in the order of addition, at their current places."""
        if self._places is None:
            self._places = self.recorded_sources()
            if self._gallery is not None:
                self._places, self._moves = find_places(
                    self._places, gallery=self._gallery, places=self._read_places(), take_sample=self._take_sample
                )
        return dict(self._places)

    def recorded_sources(self) -> dict[int, ImageSource]:
        """The sources by number as recorded; those in the gallery have relative locations."""
        rows = self._connection.execute("SELECT id, kind, location FROM sources ORDER BY id")
        return {number: make_source(kind, os.fsdecode(location)) for number, kind, location in rows}

    def added_source(self) -> int | None:
        """The number of the source of uploaded images; None without one."""
        number = self._ask("SELECT id FROM sources WHERE location = ?", os.fsencode(ADDED_PLACE))
        return None if number is None else int(number)

    def moved_sources(self) -> tuple[str, ...]:
        """Messages about sources that were found in another place."""
        self.sources()
        return self._moves

    def labels_file(self) -> Path | None:
        """The label file at its current place; None for a gallery built without one."""
        recorded = self.setting("labels")
        if recorded is None:
            return None
        path = str(json.loads(recorded))
        if self._gallery is not None:
            path = find_file_beside(path, gallery=self._gallery, places=self._read_places())
        return Path(path)

    def _read_places(self) -> dict[str, str]:
        return dict(json.loads(self.setting(PLACES_SETTING) or "{}"))

    def _take_sample(self, source: int, count: int) -> list[CatalogRow]:
        wanted = "source = ? AND (status != 'skipped' OR reason = 'removed')"
        query = f"SELECT {COLUMNS} FROM images WHERE {wanted} LIMIT ?"
        return [make_row(row) for row in self._connection.execute(query, (source, count))]

    def setting(self, name: str) -> str | None:
        """A setting of the gallery; None where it was never given."""
        value = self._ask("SELECT value FROM settings WHERE name = ?", name)
        return None if value is None else str(value)

    def check(self) -> None:
        if (found := self._ask("PRAGMA quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(found)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of rows by value; folders are bytes of direct parents, metadata by name, then kind and value.

    `months`, such as 2024-05, are of the metadata `taken`.
    """

    total: int
    tags: Mapping[str | None, int]
    labels: Mapping[str | None, int]
    folders: Mapping[bytes, int]
    sources: Mapping[int, int]
    months: Mapping[str, int]
    metadata: Mapping[str, Mapping[tuple[ValueKind, Any], int]]


def count_values(catalog: Catalog, where: Condition | None, *, columns: Sequence[str]) -> Counts:
    """Facet counts of the rows that a condition keeps; metadata of these names only."""
    execute, kept = catalog.connection.execute, _INDEXED
    if where is not None:
        found = catalog.find_matching(where)
        execute(f"CREATE TEMP TABLE kept AS {found.text}", found.values)
        kept = "images.id IN kept"
    rows = f"FROM images NOT INDEXED WHERE {kept}"
    metadata: dict[str, dict[tuple[ValueKind, Any], int]] = {name: {} for name in columns}
    if columns:
        query = (
            f"SELECT j.key, {_KIND} AS kind, j.value, count(*) FROM images NOT INDEXED, "
            f"json_each(images.metadata) AS j WHERE {kept} AND {_IS_PLAIN} "
            f"AND j.key IN ({', '.join('?' for _ in columns)}) GROUP BY j.key, kind, j.value"
        )
        for name, kind, value, count in execute(query, columns):
            metadata[name][kind, value] = count
    taken = f"substr(json_extract(metadata, '$.{TAKEN}'), 1, 7)"
    is_month = f"metadata IS NOT NULL AND {taken} GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]'"
    months = f"SELECT {taken}, count(*) {rows} AND {is_month} GROUP BY 1 ORDER BY 1"
    labels = dict(execute(f"SELECT label, count(*) {rows} GROUP BY label").fetchall())
    sources = {number: sum(labels.values()) for (number,) in execute("SELECT id FROM sources")}
    if len(sources) > 1:
        sources = dict(execute(f"SELECT source, count(*) {rows} GROUP BY source").fetchall())
    return Counts(
        total=sum(labels.values()),
        tags=count_tagged(catalog, kept=kept),
        labels=labels,
        folders=Counter(path.rpartition(b"/")[0] for (path,) in execute(f"SELECT path {rows}")),
        sources=sources,
        months=dict(execute(months).fetchall()),
        metadata=metadata,
    )


def count_tagged(catalog: Catalog, *, kept: str = _INDEXED) -> dict[str | None, int]:
    """Number of matching rows for each tag; key None: rows without a tag. Empty where there are no tags."""
    if not catalog.attach_tags():
        return {}
    execute, tagged = catalog.connection.execute, f"FROM tags JOIN images ON images.id = tags.id WHERE {kept}"
    counts = dict[str | None, int](execute(f"SELECT tag, count(*) {tagged} GROUP BY tag").fetchall())
    (total,) = execute(f"SELECT count(*) FROM images WHERE {kept}").fetchone()
    (with_tag,) = execute(f"SELECT count(DISTINCT tags.id) {tagged}").fetchone()
    return counts | ({None: total - with_tag} if total > with_tag else {})


def list_columns(catalog: Catalog, *, limit: int) -> list[str]:
    """Names of metadata, the most frequent first."""
    query = (
        f"SELECT j.key FROM images NOT INDEXED, json_each(images.metadata) AS j WHERE {_INDEXED} "
        "GROUP BY j.key ORDER BY count(*) DESC, j.key LIMIT ?"
    )
    return [name for (name,) in catalog.connection.execute(query, (limit,))]


def list_plain_columns(catalog: Catalog, *, most_values: int, limit: int) -> list[str]:
    """Names of metadata with at most so many plain values, the most frequent first."""
    query = (
        "SELECT j.key, count(*) AS members, count(DISTINCT j.value) AS found FROM images, json_each(metadata) AS j "
        f"WHERE {_INDEXED} AND {_IS_PLAIN} GROUP BY j.key HAVING found <= ? ORDER BY members DESC, j.key LIMIT ?"
    )
    return [name for name, _, _ in catalog.connection.execute(query, (most_values, limit))]


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty catalogue, all or none."""
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
    check_version(connection)


def check_version(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise sqlite3.DatabaseError(
            f"its tables are of version {version}, expected {VERSION}: a pre-release or a newer program made it; build "
            "the gallery again into another folder"
        )
