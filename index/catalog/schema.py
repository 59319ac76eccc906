"""The tables of a catalogue, and the number of their version."""

from __future__ import annotations

import sqlite3

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
    keeper INTEGER,                        -- of a duplicate: the indexed image that it repeats
    label TEXT,
    metadata TEXT,                         -- a JSON object
    UNIQUE (source, path)
);
CREATE INDEX images_by_status ON images (status, id);
CREATE INDEX images_by_label ON images (label, id);
CREATE INDEX images_by_content ON images (sha256);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty catalogue, all or none; one that has them is left as it is.

    Raises:
        sqlite3.DatabaseError: it has those of another version.
    """
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
    check_version(connection)


def check_version(connection: sqlite3.Connection) -> None:
    """Refuse the tables of another version.

    Raises:
        sqlite3.DatabaseError: the catalogue has them.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise sqlite3.DatabaseError(
            f"its tables are of version {version}, expected {VERSION}: a pre-release or a newer program made it; "
            "build the gallery again into another folder"
        )
