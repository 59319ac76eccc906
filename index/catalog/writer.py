"""Writing the catalogue of a gallery: sources, settings, scans, outcomes of items, and the finished file."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple
from itertools import chain
from pathlib import Path

import numpy as np

from index.arrays import Ids
from index.catalog.described import OF_ROW, prepare_facts, record_facts
from index.catalog.reader import Catalog, create_tables, find_gallery, opened
from index.catalog.rows import (
    CLUSTER,
    CLUSTERS_SETTING,
    COLUMNS,
    REMOVED,
    SKIP_SETTING,
    SKIPPED_IF,
    CatalogRow,
    make_row,
)
from index.catalog.source_places import PLACES_SETTING, describe_places, place_in_gallery
from index.errors import InputError
from index.filters.condition import Condition
from index.filters.parser import parse_filter
from index.filters.to_sql import write_sql
from index.items import EmbeddedItem
from index.measures import MEASURES, Measures
from index.sources.source import ImageSource

PLACE = "source, path, archive, starts_at, size_bytes, mtime_ns, label, metadata"  # columns of a scan

_SET_MEASURES = ", ".join(f"{name} = ?" for name in MEASURES)
_IDENTITY = (  # columns by which two catalogues are compared
    "source, path, archive, starts_at, size_bytes, mtime_ns, sha256, status, reason, keeper, label, metadata"
)


@contextmanager
def write_catalog(path: Path) -> "Iterator[CatalogWriter]":
    """Open, or create, the catalogue of unfinished work, in WAL mode."""
    with opened(path, query="mode=rwc") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        create_tables(connection)
        prepare_facts(connection)
        yield CatalogWriter(connection, gallery=find_gallery(path))


class CatalogWriter(Catalog):
    """A writable catalogue; get one from `write_catalog`. Every method is atomic."""

    def __init__(self, connection: sqlite3.Connection, *, gallery: Path | None = None) -> None:
        super().__init__(connection, gallery=gallery)
        self.has_scan = self.restores = False

    @contextmanager
    def transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """A transaction; a nested one is part of the outer one."""
        if self._connection.in_transaction:
            yield self._connection.execute
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.execute
        except BaseException:  # also an interrupt
            if self._connection.in_transaction:  # on a full disk SQLite has rolled back itself
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def raise_next_id(self, least: int) -> None:
        """Let no new item get an id below `least`."""
        if self.next_id() < least:
            with self.transaction() as execute:
                if not execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'images'", (least - 1,)).rowcount:
                    execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('images', ?)", (least - 1,))

    def select(self, condition: str) -> Iterator[CatalogRow]:
        """Rows in id order, which may be changed while it iterates."""
        after = -1
        query = f"SELECT {COLUMNS} FROM images WHERE id > ? AND {condition} ORDER BY id LIMIT 1024"
        while page := self._connection.execute(query, (after,)).fetchall():
            yield from map(make_row, page)
            after = page[-1][0]

    def renew_where(self, condition: str, values: Sequence[object] = ()) -> None:
        """Give the items of some rows new ids, pending, with what their sources give: ids are never reused."""
        given = PLACE.replace("metadata", f"without_facts(metadata, {OF_ROW})")
        self._connection.execute(
            f"INSERT OR REPLACE INTO images ({PLACE}, status) SELECT {given}, 'pending' FROM images "
            f"WHERE {condition} ORDER BY id",
            values,
        )

    def release_duplicates(self) -> None:
        """Duplicates of rows that are not indexed any more become pending items."""
        self.renew_where("keeper IS NOT NULL AND keeper NOT IN (SELECT id FROM images WHERE status = 'indexed')")

    def prepare(self) -> None:
        """Begin the next version: no checkpoint yet."""
        with self.transaction() as execute:
            execute("CREATE TABLE IF NOT EXISTS checkpoints (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL)")
            execute("CREATE TABLE IF NOT EXISTS retried (source INTEGER PRIMARY KEY)")

    def set(self, settings: Mapping[str, str | None]) -> None:
        """Change settings; None removes one."""
        with self.transaction() as execute:
            for name, value in settings.items():
                if value is None:
                    execute("DELETE FROM settings WHERE name = ?", (name,))
                else:
                    execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def add_sources(self, sources: Iterable[ImageSource]) -> list[int]:
        known = {source.location: number for number, source in self.sources().items()}
        with self.transaction() as execute:
            numbers = set()
            for source in sources:
                if source.location not in known:
                    values = (source.kind, os.fsencode(self._record(source.location)))
                    added = execute("INSERT INTO sources (kind, location) VALUES (?, ?)", values)
                    known[source.location] = int(added.lastrowid or 0)
                numbers.add(known[source.location])
        self._places = None
        return sorted(numbers)

    def move_source(self, number: int, location: str) -> None:
        """Change a source's location; its items keep their rows."""
        with self.transaction() as execute:
            values = (os.fsencode(self._record(location)), number)
            execute("UPDATE sources SET location = ? WHERE id = ?", values)
        self._places = None

    def record_places(self) -> None:
        """Record the current places of the sources; see `source_places`."""
        if self._gallery is None:
            return
        sources, labels_file = self.sources(), self.labels_file()
        with self.transaction() as execute:
            for number, source in sources.items():
                location = os.fsencode(self._record(source.location))
                values = (location, number, location)
                execute("UPDATE OR IGNORE sources SET location = ? WHERE id = ? AND location != ?", values)
            if labels_file is not None:
                self.set({"labels": json.dumps(str(labels_file))})
            places = describe_places(
                sources, gallery=self._gallery, labels_file=labels_file, before=self._read_places()
            )
            self.set({PLACES_SETTING: places})
        self._places = None

    def _record(self, location: str) -> str:
        return location if self._gallery is None else place_in_gallery(location, gallery=self._gallery)

    def remove_source(self, number: int) -> int:
        """Remove a source and its items; the number of items."""
        with self.transaction() as execute:
            removed = execute("DELETE FROM images WHERE source = ?", (number,)).rowcount
            execute("DELETE FROM sources WHERE id = ?", (number,))
            self.release_duplicates()
        self._places = None
        return removed

    def changed(self) -> Iterator[CatalogRow]:
        """Pending rows with a hash: their bytes decide whether they changed."""
        yield from self.select("status = 'pending' AND sha256 IS NOT NULL")

    def moved_candidates(self) -> Iterator[CatalogRow]:
        """New rows with the size of a vanished one."""
        if self.has_scan:
            yield from self.select(
                "status = 'pending' AND sha256 IS NULL AND size_bytes IN (SELECT size_bytes FROM temp.gone)"
            )

    def confirm(self, hashed: Iterable[tuple[CatalogRow, str | None]]) -> None:
        """Settle rows of `changed` by the hash of their bytes; with other bytes, or none, the item gets a new id."""
        with self.transaction() as execute:
            for row, sha256 in hashed:
                if sha256 == row.sha256:
                    status = "indexed" if row.kept_id is None else "duplicate"
                    execute("UPDATE images SET status = ? WHERE id = ?", (status, row.id))
                else:
                    self.renew_where("id = ?", (row.id,))

    def confirm_moved(self, hashed: Iterable[tuple[CatalogRow, str | None]]) -> int:
        """Recognise moved files: a vanished item takes the place of the new row with its bytes; the number of moves."""
        moved = 0
        with self.transaction() as execute:
            for row, sha256 in hashed:
                vanished = execute(
                    "SELECT i.id FROM temp.gone v JOIN images i ON i.id = v.id WHERE v.sha256 = ? "
                    "AND (i.status IN ('indexed', 'duplicate') OR i.reason = ? AND NOT ?) "
                    "ORDER BY i.status = 'indexed' DESC, i.id LIMIT 1",
                    (sha256, REMOVED, self.restores),
                ).fetchone()
                if vanished is not None:
                    execute("DELETE FROM temp.gone WHERE id = ?", vanished)
                    execute(  # which replaces the new row
                        f"UPDATE OR REPLACE images SET ({PLACE}) = (SELECT {PLACE} FROM images WHERE id = ?) "
                        "WHERE id = ?",
                        (row.id, *vanished),
                    )
                    execute(f"UPDATE images SET metadata = with_facts(metadata, {OF_ROW}) WHERE id = ?", vanished)
                    moved += 1
        return moved

    def drop_vanished(self) -> int:
        """Remove the rows that the scan did not meet; their number."""
        dropped = 0
        with self.transaction() as execute:
            if self.has_scan:
                dropped = execute("DELETE FROM images WHERE id IN (SELECT id FROM temp.gone)").rowcount
            self.release_duplicates()
            execute("DELETE FROM facts WHERE sha256 NOT IN (SELECT sha256 FROM images WHERE sha256 NOT NULL)")
        return dropped

    def take_out(self, rows: Iterable[CatalogRow]) -> None:
        """Remove items: they are skipped from now on, also where their files stay or move."""
        with self.transaction() as execute:
            for row in rows:
                execute(
                    "UPDATE images SET status = 'skipped', reason = ?, detail = NULL, keeper = NULL WHERE id = ?",
                    (REMOVED, row.id),
                )
            self.release_duplicates()

    def skip_condition(self) -> Condition | None:
        """The condition of images that are skipped."""
        text = self.setting(SKIP_SETTING)
        return None if text is None else parse_filter(text)

    def skip_matching(self) -> bool:
        """Skip the images that match the `skip_condition`; whether duplicates of them are pending now."""
        where = self.skip_condition()
        if where is None:
            return False
        kept = write_sql(where)
        with self.transaction() as execute:
            execute(
                "UPDATE images SET status = 'skipped', reason = ?, detail = ?, keeper = NULL "
                f"WHERE status IN ('indexed', 'duplicate') AND {kept.text}",
                (SKIPPED_IF, self.setting(SKIP_SETTING), *kept.values),
            )
            self.release_duplicates()
        return self.count("pending") > 0

    def make_pending(self, ids: Iterable[int], *, confirm: bool) -> None:
        """Let images be embedded again under their ids; with `confirm`, `changed` checks their bytes first."""
        with self.transaction():
            self._connection.executemany(
                f"UPDATE images SET status = 'pending', sha256 = {'sha256' if confirm else 'NULL'} WHERE id = ?",
                ((number,) for number in ids),
            )

    def kept_images(self) -> Ids:
        rows = self._connection.execute("SELECT DISTINCT keeper FROM images WHERE keeper NOT NULL")
        return np.fromiter(chain.from_iterable(rows), dtype=np.int64)

    def repeated(self) -> list[tuple[str, int]]:
        """(hash, id) of indexed rows with the same bytes, in rising order."""
        indexed = "FROM images WHERE status = 'indexed'"
        query = (
            f"SELECT sha256, id {indexed} AND sha256 IN (SELECT sha256 {indexed} GROUP BY sha256 "
            "HAVING count(*) > 1) ORDER BY sha256, id"
        )
        return self._connection.execute(query).fetchall()

    def set_clusters(self, clusters: Iterable[tuple[int, str]], *, gallery: str) -> None:
        """Set the metadata column `cluster` of rows by id, in place of all earlier clusters."""
        with self.transaction() as execute:
            has = f"json_extract(metadata, '$.{CLUSTER}') IS NOT NULL"
            is_own = self.setting(CLUSTERS_SETTING) is not None
            if not is_own and execute(f"SELECT 1 FROM images WHERE {has} LIMIT 1").fetchone():
                advice = "rename that column, and update the gallery"
                raise InputError(f"its images have metadata called {CLUSTER} of their own; {advice}", at=gallery)
            execute(f"UPDATE images SET metadata = json_remove(metadata, '$.{CLUSTER}') WHERE {has}")
            execute("UPDATE images SET metadata = NULL WHERE metadata = '{}'")
            self._connection.executemany(
                f"UPDATE images SET metadata = json_set(coalesce(metadata, '{{}}'), '$.{CLUSTER}', ?) WHERE id = ?",
                ((name, number) for number, name in clusters),
            )
            self.set({CLUSTERS_SETTING: "true"})

    def set_duplicates(self, kept_images: Iterable[tuple[int, int]]) -> None:
        """Make indexed rows duplicates, given as (id, id of the kept image)."""
        with self.transaction() as execute:
            measured = ", ".join(("sha256", "phash", *MEASURES))
            for number, kept_image in kept_images:
                execute(
                    f"INSERT OR REPLACE INTO images ({PLACE}, status, keeper, {measured}) "
                    f"SELECT {PLACE}, 'duplicate', ?, {measured} FROM images WHERE id = ?",
                    (kept_image, number),
                )

    def release_all_duplicates(self) -> None:
        with self.transaction():
            self.renew_where("status = 'duplicate' OR keeper IS NOT NULL")

    def record_outcomes(self, items: Iterable[EmbeddedItem], *, checkpoints: Mapping[str, str]) -> None:
        """Make pending rows indexed or skipped; the checkpoint with their vectors, by name, has a SHA-256."""
        with self.transaction() as execute:
            self._connection.executemany(
                "UPDATE images SET status = ?, sha256 = ?, phash = ?, reason = ?, detail = ?, "
                f"{_SET_MEASURES}, size_bytes = coalesce(?, size_bytes), mtime_ns = coalesce(?, mtime_ns) WHERE id = ?",
                map(_outcome_values, items := list(items)),
            )
            usable = ((item.sha256 or "", item.facts or {}) for item in items if item.problem is None)
            record_facts(self, usable, is_pass=False)
            for saved in checkpoints.items():
                execute("INSERT INTO checkpoints VALUES (?, ?)", saved)

    def checkpoints(self) -> dict[str, str]:
        """SHA-256 by name of the checkpoints whose rows are recorded; other files are leftovers."""
        return dict(self._connection.execute("SELECT name, sha256 FROM checkpoints ORDER BY name").fetchall())

    def same_as(self, other: Path) -> bool:
        """Whether a finished catalogue has the same items, sources and settings, but for `PLACES_SETTING`."""
        self._connection.execute("ATTACH ? AS other", (f"{other.absolute().as_uri()}?mode=ro&immutable=1",))
        try:
            tables = (("sources", "id", "kind, location"), ("settings", "name", "value"), ("images", "id", _IDENTITY))
            for table, key, columns in tables:
                counts = f"(SELECT count(*) FROM main.{table}) = (SELECT count(*) FROM other.{table})"
                differs = " OR ".join(f"a.{column} IS NOT b.{column}" for column in (key, *columns.split(", ")))
                joined = f"main.{table} a LEFT JOIN other.{table} b ON a.{key} = b.{key}"
                some = f"SELECT 1 FROM {joined} WHERE ({differs}) AND a.{key} IS NOT ?"
                if not self._ask(f"SELECT {counts} AND NOT EXISTS ({some})", PLACES_SETTING):
                    return False
            return True
        finally:
            self._connection.execute("DETACH other")

    def write_finished(self, path: Path, *, compact: bool) -> None:
        """Write the catalogue of a finished version; `compact` frees the space of removed rows."""
        if compact:
            self._connection.execute("VACUUM INTO ?", (os.fspath(path),))
        with closing(sqlite3.connect(path, isolation_level=None)) as copy:
            if not compact:
                self._connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("DROP TABLE checkpoints")
            copy.execute("DROP TABLE retried")


def _outcome_values(item: EmbeddedItem) -> tuple[object, ...]:
    """The columns of a row that was pending: indexed, or skipped for a problem; size and time of a fetched item."""
    size_bytes, mtime_ns = item.fetched or (None, None)
    place, measured = (size_bytes, mtime_ns, item.id), astuple(item.measures or Measures())
    if (problem := item.problem) is not None:
        return ("skipped", item.sha256, None, problem.reason, problem.detail, *measured, *place)
    return ("indexed", item.sha256, item.phash, None, None, *measured, *place)
