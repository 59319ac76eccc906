"""The tables of a catalogue, and the steps that bring one of an earlier program to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

_FIRST = """
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
"""
MIGRATIONS: Sequence[str] = (_FIRST,)
"""Step n brings a catalogue of version n to n + 1; steps are only ever appended."""


def migrate(connection: sqlite3.Connection, *, steps: Sequence[str] = MIGRATIONS) -> None:
    """Apply the steps that a catalogue lacks, each whole or not at all; its version is SQLite's `user_version`.

    Raises:
        sqlite3.DatabaseError: it was written by a newer program.
    """
    for number in range(read_version(connection, newest=len(steps)), len(steps)):
        connection.executescript(f"BEGIN IMMEDIATE; {steps[number]}; PRAGMA user_version = {number + 1}; COMMIT;")


def read_version(connection: sqlite3.Connection, *, newest: int = len(MIGRATIONS)) -> int:
    """How many of the migrations a catalogue has behind it.

    Raises:
        sqlite3.DatabaseError: it was written by a newer program.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > newest:
        raise sqlite3.DatabaseError(f"it has version {version}, this program knows {newest}; use a newer program")
    return version
