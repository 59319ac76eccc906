"""The catalogue of a gallery in the making: its sources and settings, what became of items, how it is finished."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from index.catalog.catalog_scan import REMOVED, CatalogScan
from index.catalog.reader import create_tables, find_gallery, opened
from index.catalog.rows import CatalogRow
from index.catalog.source_places import PLACES_SETTING, describe_places, place_in_gallery
from index.sources.items import EmbeddedItem
from index.sources.source import ImageSource

_IDENTITY = (  # what makes two catalogues the same; not the scan's own notes
    "source, path, archive, starts_at, size_bytes, mtime_ns, sha256, status, reason, keeper, label, metadata"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file of vectors whose rows are recorded, and its SHA-256."""

    name: str
    sha256: str


@contextmanager
def write_catalog(path: Path) -> Iterator[CatalogWriter]:
    """Open the catalogue of a gallery in the making, made if there is none, in WAL mode."""
    with opened(path, query="mode=rwc") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        create_tables(connection)
        yield CatalogWriter(connection, gallery=find_gallery(path))


class CatalogWriter(CatalogScan):
    """Adds to a catalogue; get one from `write_catalog`. Every method leaves all of its change or none."""

    def prepare(self) -> None:
        """Begin the next version: no checkpoint yet."""
        with self.transaction() as execute:
            execute("CREATE TABLE IF NOT EXISTS checkpoints (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL)")
            execute("CREATE TABLE IF NOT EXISTS retried (source INTEGER PRIMARY KEY)")

    def set(self, settings: Mapping[str, str | None]) -> None:
        """Change settings; None takes one away."""
        with self.transaction() as execute:
            for name, value in settings.items():
                if value is None:
                    execute("DELETE FROM settings WHERE name = ?", (name,))
                else:
                    execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def add_sources(self, sources: Iterable[ImageSource]) -> list[int]:
        """The numbers of the sources, known before or new."""
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
        """A source is somewhere else now; its items keep their rows."""
        with self.transaction() as execute:
            values = (os.fsencode(self._record(location)), number)
            execute("UPDATE sources SET location = ? WHERE id = ?", values)
        self._places = None

    def record_places(self) -> None:
        """Record where the sources are now, and where they lie as seen from the gallery."""
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
        """Forget a source and its items; the number of these."""
        with self.transaction() as execute:
            removed = execute("DELETE FROM images WHERE source = ?", (number,)).rowcount
            execute("DELETE FROM sources WHERE id = ?", (number,))
            self.release_duplicates()
        self._places = None
        return removed

    def take_out(self, rows: Iterable[CatalogRow]) -> None:
        """Take items out of the gallery; they are skipped from now on, also where their files stay or are moved."""
        with self.transaction() as execute:
            for row in rows:
                execute(
                    "UPDATE images SET status = 'skipped', reason = ?, detail = NULL, keeper = NULL WHERE id = ?",
                    (REMOVED, row.id),
                )
            self.release_duplicates()

    def make_pending(self, ids: Iterable[int], *, confirm: bool) -> None:
        """Let images be embedded again under their ids; `confirm` leaves it to `changed` whether they still may."""
        with self.transaction():
            self._connection.executemany(
                f"UPDATE images SET status = 'pending', sha256 = {'sha256' if confirm else 'NULL'} WHERE id = ?",
                ((number,) for number in ids),
            )

    def kept_images(self) -> list[int]:
        """Ids of the images that have duplicates."""
        return [
            row[0] for row in self._connection.execute("SELECT DISTINCT keeper FROM images WHERE keeper NOT NULL")
        ]

    def repeated(self) -> list[tuple[str, int]]:
        """(hash, id) of the indexed rows that have the same bytes as another one, in rising order."""
        indexed = "FROM images WHERE status = 'indexed'"
        query = (
            f"SELECT sha256, id {indexed} AND sha256 IN (SELECT sha256 {indexed} GROUP BY sha256 "
            "HAVING count(*) > 1) ORDER BY sha256, id"
        )
        return self._connection.execute(query).fetchall()

    def set_duplicates(self, kept_images: Iterable[tuple[int, int]]) -> None:
        """Make indexed rows duplicates, given as (row, the row it repeats)."""
        with self.transaction() as execute:
            for number, kept_image in kept_images:
                row = self.find([number])[number]
                renewed = self.renew(row)
                execute(
                    "UPDATE images SET status = 'duplicate', keeper = ?, sha256 = ?, phash = ? WHERE id = ?",
                    (kept_image, row.sha256, row.phash, renewed),
                )

    def release_all_duplicates(self) -> None:
        """Let every duplicate be an item like others again."""
        with self.transaction():
            self.renew_where("status = 'duplicate' OR keeper IS NOT NULL")

    def record_outcomes(self, items: Iterable[EmbeddedItem], *, checkpoint: Checkpoint | None) -> None:
        """Settle pending rows together with the checkpoint that holds their vectors (None: no vectors)."""
        with self.transaction() as execute:
            self._connection.executemany(
                "UPDATE images SET status = ?, sha256 = ?, phash = ?, reason = ?, detail = ?, "
                "size_bytes = coalesce(?, size_bytes), mtime_ns = coalesce(?, mtime_ns) WHERE id = ?",
                map(_outcome_values, items),
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
        """Whether a finished catalogue has the same items, ids, outcomes, sources and settings.

        That a gallery lies elsewhere, as seen from its sources, makes no difference; that it does not know it yet does.
        """
        self._connection.execute("ATTACH ? AS other", (f"{other.absolute().as_uri()}?mode=ro&immutable=1",))
        try:
            return all(
                self._is_same(table, key, columns.split(", "))
                for table, key, columns in (
                    ("sources", "id", "kind, location"),
                    ("settings", "name", "value"),
                    ("images", "id", _IDENTITY),
                )
            )
        finally:
            self._connection.execute("DETACH other")

    def _is_same(self, table: str, key: str, columns: Sequence[str]) -> bool:
        counts = f"(SELECT count(*) FROM main.{table}) = (SELECT count(*) FROM other.{table})"
        differs = " OR ".join(f"a.{column} IS NOT b.{column}" for column in (key, *columns))
        joined = f"main.{table} a LEFT JOIN other.{table} b ON a.{key} = b.{key}"
        query = f"SELECT {counts} AND NOT EXISTS (SELECT 1 FROM {joined} WHERE ({differs}) AND a.{key} IS NOT ?)"
        return bool(self._connection.execute(query, (PLACES_SETTING,)).fetchone()[0])

    def write_finished(self, path: Path, *, compact: bool) -> None:
        """Write the catalogue of a finished version; `compact` gives back the room of removed rows."""
        if compact:
            self._connection.execute("VACUUM INTO ?", (os.fspath(path),))
        with closing(sqlite3.connect(path, isolation_level=None)) as copy:
            if not compact:
                self._connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("DROP TABLE checkpoints")
            copy.execute("DROP TABLE retried")


def _outcome_values(item: EmbeddedItem) -> tuple[object, ...]:
    """The columns of a settled row: indexed without a problem, else skipped; of what was fetched also size and time."""
    size_bytes, mtime_ns = (
        (item.fetched.size_bytes, item.fetched.stamp) if item.fetched is not None else (None, None)
    )
    if (problem := item.problem) is not None:
        return ("skipped", item.sha256, None, problem.reason, problem.detail, size_bytes, mtime_ns, item.id)
    return ("indexed", item.sha256, item.phash, None, None, size_bytes, mtime_ns, item.id)
