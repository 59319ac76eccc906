"""Changing the rows of a catalogue: in transactions, with an id for the same bytes for ever."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from index.catalog.reader import Catalog
from index.catalog.rows import COLUMNS, CatalogRow, make_row

PLACE = "source, path, archive, starts_at, size_bytes, mtime_ns, label, metadata"  # what a scan says of an item


class CatalogEditor(Catalog):
    """A catalogue that can be changed: transactions, new ids, released duplicates."""

    @contextmanager
    def transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """A transaction: all of what is done within, or none of it; one within another is a part of it."""
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

    def raise_next_id(self, least: int) -> None:
        """Let no new item get an id below `least`."""
        if self.next_id() < least:
            with self.transaction() as execute:
                if not execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'images'", (least - 1,)).rowcount:
                    execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('images', ?)", (least - 1,))

    def select(self, condition: str) -> Iterator[CatalogRow]:
        """Rows in id order; they may be changed meanwhile."""
        after = -1
        query = f"SELECT {COLUMNS} FROM images WHERE id > ? AND {condition} ORDER BY id LIMIT 1024"
        while page := self._connection.execute(query, (after,)).fetchall():
            yield from map(make_row, page)
            after = page[-1][0]

    def renew_where(self, condition: str, values: Sequence[object] = ()) -> None:
        """Give the items of some rows, of which few are expected, new ids; they are pending then."""
        query = f"SELECT {COLUMNS} FROM images WHERE {condition} ORDER BY id"
        for row in map(make_row, self._connection.execute(query, values).fetchall()):
            self.renew(row)

    def renew(self, row: CatalogRow) -> int:
        """Give an item a new id, pending, for an id stands for the same bytes for ever."""
        execute = self._connection.execute
        execute("DELETE FROM images WHERE id = ?", (row.id,))
        inserted = execute(
            f"INSERT INTO images ({PLACE}, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'pending')", place_values(row)
        )
        return int(inserted.lastrowid or 0)

    def release_duplicates(self) -> None:
        """Duplicates of what is not indexed any more are items like others again."""
        self.renew_where("keeper IS NOT NULL AND keeper NOT IN (SELECT id FROM images WHERE status = 'indexed')")


def place_values(row: CatalogRow) -> tuple[object, ...]:
    archive = None if row.archive is None else os.fsencode(row.archive)
    return (row.source, os.fsencode(row.path), archive, row.starts_at, row.size_bytes, row.mtime_ns, row.label,
            row.metadata_json)  # fmt: skip
