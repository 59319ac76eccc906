"""The catalogue of a gallery in the making: what a scan found, what became of it, what was taken out."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from index.catalog import COLUMNS, Catalog, CatalogRow, make_row, opened
from index.catalog_schema import migrate
from index.items import FoundItem
from index.sources import Source

REMOVED = "removed"
_IDENTITY = (  # what makes two catalogues the same; not the scan's own notes
    "id, source, path, archive, starts_at, size_bytes, mtime_ns, sha256, status, reason, keeper, label, metadata"
)
# Found items lie in a table of the connection's own, so that a scan changes the rows in one transaction.
_FOUND = """
CREATE TEMP TABLE found (
    source INTEGER NOT NULL, path BLOB NOT NULL, archive BLOB, starts_at INTEGER, size_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, reason TEXT, detail TEXT, label TEXT, metadata TEXT,
    UNIQUE (source, path)
)
"""
_SAME_FILE = "i.source = f.source AND i.path = f.path"
_SAME_STATE = "i.size_bytes = f.size_bytes AND i.mtime_ns = f.mtime_ns AND i.starts_at IS f.starts_at"
_VANISHED = (
    "v.source IN (SELECT source FROM rescanned) "
    "AND NOT EXISTS (SELECT 1 FROM found f WHERE f.source = v.source AND f.path = v.path)"
)
_READ_BEFORE = "i.status IN ('pending', 'indexed', 'duplicate') AND i.sha256 IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pending item: indexed where `reason` is None, else skipped."""

    id: int
    sha256: str | None = None
    phash: int | None = None
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file of vectors whose rows are recorded, and its SHA-256."""

    name: str
    sha256: str


@contextmanager
def write_catalog(path: Path) -> Iterator[CatalogWriter]:
    """Open the catalogue of a gallery in the making, made if there is none, in WAL mode.

    Raises:
        GalleryError: SQLite cannot read or write it.
    """
    with opened(path, query="mode=rwc") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection)
        yield CatalogWriter(connection)


class CatalogWriter(Catalog):
    """Adds to a catalogue; get one from `write_catalog`. Every method leaves all of its change or none."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._has_scan = False

    def prepare(self) -> None:
        """Begin the next version: no checkpoint yet, and skipped rows are tried again, but for those taken out."""
        with self.transaction() as execute:
            execute("CREATE TABLE IF NOT EXISTS checkpoints (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL)")
            execute(
                "UPDATE images SET status = 'pending', sha256 = NULL, reason = NULL, detail = NULL "
                "WHERE status = 'skipped' AND reason != ?",
                (REMOVED,),
            )

    def set(self, settings: Mapping[str, str | None]) -> None:
        """Change settings; None takes one away."""
        with self.transaction() as execute:
            for name, value in settings.items():
                if value is None:
                    execute("DELETE FROM settings WHERE name = ?", (name,))
                else:
                    execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def add_sources(self, sources: Iterable[Source]) -> list[int]:
        """The numbers of the sources, known before or new."""
        numbers: list[int] = []
        with self.transaction() as execute:
            for source in sources:
                values = (source.kind, os.fsencode(source.location))
                execute("INSERT INTO sources (kind, location) VALUES (?, ?) ON CONFLICT DO NOTHING", values)
                numbers += execute("SELECT id FROM sources WHERE location = ?", values[1:]).fetchone()
        return sorted(set(numbers))

    def move_source(self, number: int, location: str) -> None:
        """A source is somewhere else now; its items keep their rows."""
        with self.transaction() as execute:
            execute("UPDATE sources SET location = ? WHERE id = ?", (os.fsencode(location), number))

    def remove_source(self, number: int) -> int:
        """Forget a source and its items; the number of these."""
        with self.transaction() as execute:
            removed = execute("DELETE FROM images WHERE source = ?", (number,)).rowcount
            execute("DELETE FROM sources WHERE id = ?", (number,))
            self._release_duplicates()
        return removed

    def has_item(self, source: int, path: str, *, in_scan: bool) -> bool:
        """Whether a source has an item of this path: by the scan that is being recorded, or by its rows."""
        table = "temp.found" if in_scan else "images"
        query = f"SELECT 1 FROM {table} WHERE source = ? AND path = ?"
        return self._connection.execute(query, (source, os.fsencode(path))).fetchone() is not None

    def record_scan(
        self, found: Iterable[tuple[int, FoundItem]], *, scanned: Sequence[int], restore: bool
    ) -> None:
        """Bring the rows in line with a scan of some sources, given as (source, item); all or nothing.

        Items of unchanged size and time keep their row; changed ones are pending with their old hash, to be confirmed;
        new ones are pending. Rows that the scan did not meet stay until `drop_vanished`.
        With `restore`, items that were taken out come back.
        """
        with self.transaction() as execute:
            execute("DROP TABLE IF EXISTS temp.found")
            execute("DROP TABLE IF EXISTS temp.rescanned")
            execute(_FOUND)
            execute("CREATE TEMP TABLE rescanned (source INTEGER PRIMARY KEY)")
            self._connection.executemany("INSERT INTO rescanned VALUES (?)", ((number,) for number in scanned))
            self._connection.executemany(
                "INSERT INTO found VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (_found_values(source, item) for source, item in found),
            )
            self._merge_found(restore=restore)
        self._has_scan = True

    def _merge_found(self, *, restore: bool) -> None:
        execute = self._connection.execute
        if restore:
            self._renew_where("id IN (SELECT i.id FROM images i, found f "
                              f"WHERE {_SAME_FILE} AND i.reason = '{REMOVED}')")  # fmt: skip
        execute(  # what changed keeps its hash, and a duplicate its keeper, until the bytes were read
            "UPDATE images AS i SET size_bytes = f.size_bytes, mtime_ns = f.mtime_ns, starts_at = f.starts_at, "
            "status = 'pending', reason = NULL, detail = NULL, "
            "sha256 = CASE WHEN i.status = 'skipped' THEN NULL ELSE i.sha256 END "
            f"FROM found f WHERE {_SAME_FILE} AND NOT ({_SAME_STATE}) AND f.reason IS NULL AND i.reason IS NOT ?",
            (REMOVED,),
        )
        execute(
            "UPDATE images AS i SET label = f.label, metadata = f.metadata FROM found f "
            f"WHERE {_SAME_FILE} AND (i.label IS NOT f.label OR i.metadata IS NOT f.metadata)"
        )
        self._renew_where(
            "id IN (SELECT i.id FROM images i, found f "
            f"WHERE {_SAME_FILE} AND f.reason IS NOT NULL AND {_READ_BEFORE})"
        )
        execute(
            "UPDATE images AS i SET status = 'skipped', sha256 = NULL, keeper = NULL, reason = f.reason, "
            "detail = f.detail, size_bytes = f.size_bytes, mtime_ns = f.mtime_ns "
            f"FROM found f WHERE {_SAME_FILE} AND f.reason IS NOT NULL AND i.reason IS NOT ?",
            (REMOVED,),
        )
        execute(
            "INSERT INTO images (source, path, archive, starts_at, size_bytes, mtime_ns, status, reason, detail, "
            "label, metadata) SELECT source, path, archive, starts_at, size_bytes, mtime_ns, "
            "CASE WHEN reason IS NULL THEN 'pending' ELSE 'skipped' END, reason, detail, label, metadata "
            f"FROM found f WHERE NOT EXISTS (SELECT 1 FROM images i WHERE {_SAME_FILE}) ORDER BY f.rowid"
        )

    def changed(self) -> Iterator[CatalogRow]:
        """Pending rows that had been read before: the bytes decide whether they changed."""
        yield from self._select("status = 'pending' AND sha256 IS NOT NULL")

    def moved_candidates(self) -> Iterator[CatalogRow]:
        """New rows of the size of one that the scan did not meet."""
        if self._has_scan:
            yield from self._select(
                "status = 'pending' AND sha256 IS NULL AND size_bytes IN "
                f"(SELECT size_bytes FROM images v WHERE sha256 IS NOT NULL AND {_VANISHED})"
            )

    def confirm(self, row: CatalogRow, sha256: str | None) -> None:
        """Settle a row of `changed` by the hash of its bytes; other bytes, or none, make it a new item, pending."""
        with self.transaction() as execute:
            if sha256 == row.sha256:
                status = "indexed" if row.keeper is None else "duplicate"
                execute("UPDATE images SET status = ? WHERE id = ?", (status, row.id))
            else:
                self._renew(row)

    def confirm_moved(self, row: CatalogRow, sha256: str) -> bool:
        """Whether a row of `moved_candidates` is a vanished item in a new place, which then takes the row's place."""
        vanished = self._connection.execute(
            f"SELECT id FROM images v WHERE sha256 = ? AND (status IN ('indexed', 'duplicate') OR reason = ?) "
            f"AND {_VANISHED} ORDER BY status = 'indexed' DESC, id LIMIT 1",
            (sha256, REMOVED),
        ).fetchone()
        if vanished is None:
            return False
        with self.transaction() as execute:
            execute("DELETE FROM images WHERE id = ?", (row.id,))
            execute(
                "UPDATE images SET source = ?, path = ?, archive = ?, starts_at = ?, size_bytes = ?, mtime_ns = ?, "
                "label = ?, metadata = ? WHERE id = ?",
                (row.source, os.fsencode(row.path), None if row.archive is None else os.fsencode(row.archive),
                 row.starts_at, row.size_bytes, row.mtime_ns, row.label, row.metadata_json, *vanished),
            )  # fmt: skip
        return True

    def drop_vanished(self) -> int:
        """Remove the rows that the scan did not meet; the number of these."""
        if not self._has_scan:
            return 0
        with self.transaction() as execute:
            dropped = execute(f"DELETE FROM images AS v WHERE {_VANISHED}").rowcount
            self._release_duplicates()
        return dropped

    def take_out(self, rows: Iterable[CatalogRow]) -> None:
        """Take items out of the gallery; they are skipped from now on, also where their files stay or are moved."""
        with self.transaction() as execute:
            for row in rows:
                execute(
                    "UPDATE images SET status = 'skipped', reason = ?, detail = NULL, keeper = NULL WHERE id = ?",
                    (REMOVED, row.id),
                )
            self._release_duplicates()

    def restore(self, source: int, path: str) -> None:
        """Let an item that was taken out be one like others again."""
        with self.transaction():
            self._renew_where(f"source = ? AND path = ? AND reason = '{REMOVED}'", (source, os.fsencode(path)))

    def repeated(self) -> list[tuple[str, int]]:
        """(hash, id) of the indexed rows that have the same bytes as another one, in rising order."""
        indexed = "FROM images WHERE status = 'indexed'"
        query = (
            f"SELECT sha256, id {indexed} AND sha256 IN (SELECT sha256 {indexed} GROUP BY sha256 "
            "HAVING count(*) > 1) ORDER BY sha256, id"
        )
        return self._connection.execute(query).fetchall()

    def set_keepers(self, keepers: Iterable[tuple[int, int]]) -> None:
        """Make indexed rows duplicates, given as (row, the row it repeats)."""
        with self.transaction() as execute:
            for number, keeper in keepers:
                row = self.find([number])[number]
                renewed = self._renew(row)
                execute(
                    "UPDATE images SET status = 'duplicate', keeper = ?, sha256 = ?, phash = ? WHERE id = ?",
                    (keeper, row.sha256, row.phash, renewed),
                )

    def release_all_duplicates(self) -> None:
        """Let every duplicate be an item like others again."""
        with self.transaction():
            self._renew_where("status = 'duplicate' OR keeper IS NOT NULL")

    def record_outcomes(self, outcomes: Iterable[Outcome], *, checkpoint: Checkpoint | None) -> None:
        """Settle pending rows together with the checkpoint that holds their vectors (None: no vectors)."""
        with self.transaction() as execute:
            self._connection.executemany(
                "UPDATE images SET status = ?, sha256 = ?, phash = ?, reason = ?, detail = ? WHERE id = ?",
                (
                    ("indexed" if o.reason is None else "skipped", o.sha256, o.phash, o.reason, o.detail, o.id)
                    for o in outcomes
                ),
            )
            if checkpoint is not None:
                execute("INSERT INTO checkpoints VALUES (?, ?)", (checkpoint.name, checkpoint.sha256))

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints whose rows are recorded; any other file of vectors is a leftover."""
        rows = self._connection.execute("SELECT name, sha256 FROM checkpoints ORDER BY name")
        return [Checkpoint(*row) for row in rows]

    def count_checkpoints(self) -> int:
        """How many checkpoints are recorded."""
        return int(self._connection.execute("SELECT count(*) FROM checkpoints").fetchone()[0])

    def same_as(self, other: Path) -> bool:
        """Whether a finished catalogue has the same items, ids, outcomes, sources and settings."""
        self._connection.execute("ATTACH ? AS other", (f"{other.absolute().as_uri()}?mode=ro&immutable=1",))
        try:
            return not any(
                self._connection.execute(
                    f"SELECT EXISTS (SELECT {columns} FROM main.{table} EXCEPT SELECT {columns} FROM other.{table}) "
                    f"OR EXISTS (SELECT {columns} FROM other.{table} EXCEPT SELECT {columns} FROM main.{table})"
                ).fetchone()[0]
                for table, columns in (
                    ("sources", "id, kind, location"),
                    ("settings", "name, value"),
                    ("images", _IDENTITY),
                )
            )
        finally:
            self._connection.execute("DETACH other")

    def write_finished(self, path: Path, *, compact: bool) -> None:
        """Write the catalogue of a finished version; `compact` gives back the room of removed rows."""
        if compact:
            self._connection.execute("VACUUM INTO ?", (os.fspath(path),))
        else:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            name = self._connection.execute("PRAGMA database_list").fetchone()[2]
            shutil.copyfile(name, path)
        with closing(sqlite3.connect(path, isolation_level=None)) as copy:
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("DROP TABLE checkpoints")

    def _select(self, condition: str) -> Iterator[CatalogRow]:
        """Rows in id order; they may be changed meanwhile."""
        after = -1
        query = f"SELECT {COLUMNS} FROM images WHERE id > ? AND {condition} ORDER BY id LIMIT 1024"
        while page := self._connection.execute(query, (after,)).fetchall():
            yield from map(make_row, page)
            after = page[-1][0]

    def _renew_where(self, condition: str, values: Sequence[object] = ()) -> None:
        """Give the items of some rows, of which few are expected, new ids; they are pending then."""
        query = f"SELECT {COLUMNS} FROM images WHERE {condition} ORDER BY id"
        for row in map(make_row, self._connection.execute(query, values).fetchall()):
            self._renew(row)

    def _renew(self, row: CatalogRow) -> int:
        """Give an item a new id, pending, for an id stands for the same bytes for ever."""
        execute = self._connection.execute
        execute("DELETE FROM images WHERE id = ?", (row.id,))
        columns = "source, path, archive, starts_at, size_bytes, mtime_ns, label, metadata"
        values = (row.source, os.fsencode(row.path), None if row.archive is None else os.fsencode(row.archive),
                  row.starts_at, row.size_bytes, row.mtime_ns, row.label, row.metadata_json)  # fmt: skip
        inserted = execute(
            f"INSERT INTO images ({columns}, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'pending')", values
        )
        return int(inserted.lastrowid or 0)

    def _release_duplicates(self) -> None:
        """Duplicates of what is not indexed any more are items like others again."""
        self._renew_where("keeper IS NOT NULL AND keeper NOT IN (SELECT id FROM images WHERE status = 'indexed')")

    @contextmanager
    def transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """All of what is done within, or none of it; one within another is a part of it."""
        if self._connection.in_transaction:
            yield self._connection.execute
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.execute
        except BaseException:  # an interrupt too must leave the rows as they were
            if self._connection.in_transaction:  # where the disk is full SQLite has rolled back itself
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _found_values(source: int, item: FoundItem) -> tuple[object, ...]:
    archive = None if item.archive is None else os.fsencode(item.archive)
    problem = (None, None) if item.problem is None else (item.problem.reason, item.problem.detail)
    metadata = json.dumps(dict(item.metadata), sort_keys=True) if item.metadata else None
    path = os.fsencode(item.path)
    return (source, path, archive, item.offset, item.size_bytes, item.mtime_ns, *problem, item.label, metadata)
