"""The catalogue of a gallery: one SQLite row for every file found, whether it could be used or not."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from index.errors import GalleryDamagedError
from index.images import FoundFile, printable_path

_SCHEMA = """
CREATE TABLE images (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- of the vector too; never reused
    path BLOB NOT NULL UNIQUE,             -- bytes of the '/'-separated path below the source folder
    size_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    sha256 TEXT,                           -- of the file, once it was read and decoded
    status TEXT NOT NULL CHECK (status IN ('pending', 'indexed', 'skipped')),
    reason TEXT,                           -- why it was skipped, one of index.images.REASONS
    detail TEXT,
    label TEXT
);
CREATE INDEX images_by_status ON images (status, id);
"""
_COLUMNS = "id, path, size_bytes, mtime_ns, sha256, status, reason, detail, label"
_IDENTITY = "id, path, size_bytes, mtime_ns, status, reason, label"  # what makes two catalogues the same
_PAGE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One file: `path` is relative and '/'-separated, with undecodable bytes as surrogates (`os.fsdecode`)."""

    id: int
    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str | None
    status: str
    reason: str | None
    detail: str | None
    label: str | None


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one pending file: indexed where `reason` is None, else skipped."""

    id: int
    sha256: str | None = None
    reason: str | None = None
    detail: str | None = None


@contextmanager
def read_catalog(path: Path) -> Iterator[Catalog]:
    """Open the catalogue of a finished version, read-only.

    Raises:
        GalleryError: SQLite cannot read it.
    """
    yield from _opened(path, uri=f"{path.absolute().as_uri()}?mode=ro&immutable=1")


@contextmanager
def write_catalog(path: Path) -> Iterator[Catalog]:
    """Open the catalogue of a build in progress, made if there is none.

    Raises:
        GalleryError: SQLite cannot read or write it.
    """
    yield from _opened(path, uri=f"{path.absolute().as_uri()}?mode=rwc")


def _opened(path: Path, *, uri: str) -> Iterator[Catalog]:
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            yield Catalog(connection)
    except sqlite3.Error as error:
        raise GalleryDamagedError(printable_path(str(path)), f"the catalogue cannot be used: {error}") from error


class Catalog:
    """The rows of one open catalogue; get one from `read_catalog` or `write_catalog`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, *, status: str | None = None) -> Iterator[CatalogRow]:
        """Every row, or those of one status, in id order; rows may be written meanwhile."""
        last = -1
        while page := self._connection.execute(
            f"SELECT {_COLUMNS} FROM images WHERE id > ? AND (? IS NULL OR status = ?) ORDER BY id LIMIT ?",
            (last, status, status, _PAGE_ROWS),
        ).fetchall():
            yield from map(_row, page)
            last = page[-1][0]

    def find(self, ids: Iterable[int]) -> dict[int, CatalogRow]:
        """The indexed rows of these ids, by id; unknown ids are left out."""
        listed = "[" + ",".join(str(int(i)) for i in ids) + "]"
        chosen = "status = 'indexed' AND id IN (SELECT value FROM json_each(?))"
        query = f"SELECT {_COLUMNS} FROM images WHERE {chosen}"
        return {row[0]: _row(row) for row in self._connection.execute(query, (listed,))}

    def indexed_ids(self) -> list[int]:
        """Ids of the indexed rows in rising order."""
        query = "SELECT id FROM images WHERE status = 'indexed' ORDER BY id"
        return [row[0] for row in self._connection.execute(query)]

    def count(self, status: str) -> int:
        """Rows of one status."""
        query = "SELECT count(*) FROM images WHERE status = ?"
        return int(self._connection.execute(query, (status,)).fetchone()[0])

    def skipped_by_reason(self) -> dict[str, int]:
        """Skipped rows by reason, reasons in alphabetical order."""
        query = "SELECT reason, count(*) FROM images WHERE status = 'skipped' GROUP BY reason ORDER BY reason"
        return dict(self._connection.execute(query).fetchall())

    def next_id(self) -> int:
        """The id that the next new file gets."""
        row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'images'").fetchone()
        return 1 if row is None else int(row[0]) + 1

    def prepare(self) -> None:
        """Make the tables of a build in progress; rows of an earlier version stay, skipped ones are retried."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'images'").fetchone():
            self._connection.executescript(_SCHEMA)
        with self._transaction():
            self._connection.execute("CREATE TABLE checkpoints (name TEXT PRIMARY KEY)")
            self._connection.execute(
                "UPDATE images SET status = 'pending', reason = NULL, detail = NULL WHERE status = 'skipped'"
            )

    def record_found(self, files: Iterable[FoundFile], *, label_of: Callable[[str], str | None]) -> None:
        """Bring the rows in line with a walk of the folder, all or nothing.

        Files of unchanged size and time keep their row; changed ones get a new id; rows of vanished ones go.
        """
        with self._transaction():
            self._connection.execute("CREATE TEMP TABLE found (path BLOB PRIMARY KEY) WITHOUT ROWID")
            for file in files:
                self._record_file(file, label=label_of(file.relative_path))
            self._connection.execute("DELETE FROM images WHERE path NOT IN (SELECT path FROM found)")
            self._connection.execute("DROP TABLE found")

    def _record_file(self, file: FoundFile, *, label: str | None) -> None:
        path, problem = os.fsencode(file.relative_path), file.problem
        execute = self._connection.execute
        execute("INSERT INTO found VALUES (?)", (path,))
        known = execute("SELECT id, size_bytes, mtime_ns, label FROM images WHERE path = ?", (path,)).fetchone()
        if known is not None and known[1:3] != (file.size_bytes, file.mtime_ns):
            execute("DELETE FROM images WHERE id = ?", (known[0],))
            known = None
        if known is None:
            execute(
                "INSERT INTO images (path, size_bytes, mtime_ns, status, label) VALUES (?, ?, ?, 'pending', ?)",
                (path, file.size_bytes, file.mtime_ns, label),
            )
        elif known[3] != label:
            execute("UPDATE images SET label = ? WHERE id = ?", (label, known[0]))
        if problem is not None:
            execute(
                "UPDATE images SET status = 'skipped', sha256 = NULL, reason = ?, detail = ? WHERE path = ?",
                (problem.reason, problem.detail, path),
            )

    def record_results(self, results: Iterable[FileResult], *, checkpoint: str | None) -> None:
        """Settle pending files together with the name of the checkpoint of their vectors (None: no vectors)."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE images SET status = ?, sha256 = ?, reason = ?, detail = ? WHERE id = ?",
                (
                    ("indexed" if r.reason is None else "skipped", r.sha256, r.reason, r.detail, r.id)
                    for r in results
                ),
            )
            if checkpoint is not None:
                self._connection.execute("INSERT INTO checkpoints VALUES (?)", (checkpoint,))

    def checkpoints(self) -> list[str]:
        """Names of the checkpoints whose rows are recorded; any other checkpoint file is a leftover."""
        return [row[0] for row in self._connection.execute("SELECT name FROM checkpoints ORDER BY name")]

    def same_as(self, other: Path) -> bool:
        """Whether a finished catalogue has the same files, ids, outcomes and labels."""
        self._connection.execute("ATTACH ? AS other", (f"{other.absolute().as_uri()}?mode=ro&immutable=1",))
        mine, theirs = (f"SELECT {_IDENTITY} FROM {schema}.images" for schema in ("main", "other"))
        query = f"SELECT EXISTS ({mine} EXCEPT {theirs}) OR EXISTS ({theirs} EXCEPT {mine})"
        different = bool(self._connection.execute(query).fetchone()[0])
        self._connection.execute("DETACH other")
        return not different

    def write_finished(self, path: Path) -> None:
        """Write a compact copy for a finished version."""
        self._connection.execute("VACUUM INTO ?", (os.fspath(path),))
        with closing(sqlite3.connect(path, isolation_level=None)) as copy:
            copy.execute("DROP TABLE checkpoints")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:  # an interrupt too must leave the rows as they were
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _row(values: tuple[int, bytes, int, int, str, str, str, str, str]) -> CatalogRow:
    return CatalogRow(values[0], os.fsdecode(values[1]), *values[2:])
