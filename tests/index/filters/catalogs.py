"""A catalogue in memory with rows as conditions see them."""

import json
import os
import sqlite3
from collections.abc import Sequence

from index.catalog.reader import Catalog, create_tables
from tests.index.filters.on_row import Row


def fill_catalog(connection: sqlite3.Connection, rows: Sequence[Row]) -> Catalog:
    """Indexed rows in place of all that there are; their ids are 1, 2, …"""
    create_tables(connection)
    for table in ("images", "sources", "sqlite_sequence"):
        connection.execute(f"DELETE FROM {table}")
    sources = list(dict.fromkeys(row["source"] for row in rows))
    connection.executemany(
        "INSERT INTO sources (id, kind, location) VALUES (?, 'folder', ?)",
        [(number, os.fsencode(source)) for number, source in enumerate(sources)],
    )
    connection.executemany(
        "INSERT INTO images (source, path, size_bytes, mtime_ns, status, label, metadata) "
        "VALUES (?, ?, 1, 1, 'indexed', ?, ?)",
        [
            (
                sources.index(row["source"]),
                os.fsencode(row["path"]),
                row["label"],
                json.dumps(row["metadata"], sort_keys=True) if row["metadata"] else None,
            )
            for row in rows
        ],
    )
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS tags (id, tag TEXT)")
    connection.execute("DELETE FROM tags")
    connection.executemany("INSERT INTO tags VALUES (?, ?)", [(row["id"], tag) for row in rows for tag in row["tags"]])
    return Catalog(connection)
