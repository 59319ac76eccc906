"""Facts of image files in the catalogue: by content in the table `facts`, and merged into the metadata of images.

A value that a source gives wins over one of the same name. A row with a SHA-256 has the facts of that content, a row
without one has what its source gives; a rescan and a moved file thus keep the facts, and no content is read twice.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from index.catalog.rows import FACTS_SETTING, GPS_SETTING, read_metadata, without_keys
from index.images.file_facts import GPS

if TYPE_CHECKING:
    from index.catalog.writer import CatalogWriter

READ, UNREAD = "read", "unread"
"""Values of `FACTS_SETTING`: whether the files of all images were read; it is missing where they never were."""
OF_ROW = "(SELECT facts FROM facts WHERE facts.sha256 = images.sha256)"
_TABLE = """
CREATE TABLE IF NOT EXISTS facts (
    sha256 TEXT PRIMARY KEY,   -- of an image file that says something of itself
    facts TEXT NOT NULL,       -- a JSON object
    gps INTEGER NOT NULL       -- whether places were wanted
) WITHOUT ROWID
"""
UNREAD_ROWS = (  # of equal files the first
    f"status = 'indexed' AND NOT EXISTS (SELECT 1 FROM facts AS f WHERE f.sha256 = images.sha256 AND f.gps >= "
    f"(SELECT count(*) FROM settings WHERE name = '{GPS_SETTING}')) AND NOT EXISTS (SELECT 1 FROM images AS e "
    "WHERE e.sha256 = images.sha256 AND e.id < images.id AND e.status = 'indexed')"
)


def prepare_facts(connection: sqlite3.Connection) -> None:
    """Make the table, and functions of SQL that merge facts into metadata and remove them."""
    connection.execute(_TABLE)
    connection.create_function("with_facts", 2, _add_facts, deterministic=True)
    connection.create_function("without_facts", 2, _remove_facts, deterministic=True)
    connection.create_function("same_values", 2, _are_same, deterministic=True)


def _add_facts(metadata: str | None, facts: str | None) -> str | None:
    if facts is None or facts == "{}":
        return metadata
    return json.dumps({**json.loads(facts), **read_metadata(metadata)}, sort_keys=True)


def _remove_facts(metadata: str | None, facts: str | None) -> str | None:
    if facts is None:
        return metadata
    found = json.loads(facts)
    left = {name: value for name, value in read_metadata(metadata).items() if found.get(name) != value}
    return json.dumps(left, sort_keys=True) if left else None


def _are_same(metadata: str | None, other: str | None) -> bool:
    return metadata is not None and other is not None and read_metadata(metadata) == read_metadata(other)


def switch_facts(catalog: "CatalogWriter", *, gps: bool | None, describe: bool = False) -> None:
    """Let all files be read again, or those places be kept from now on, or be removed; None changes nothing."""
    had_gps = catalog.setting(GPS_SETTING) is not None
    with catalog.transaction() as execute:
        if had_gps and gps is False:
            execute(f"UPDATE images SET metadata = without_facts(metadata, {OF_ROW}) WHERE {OF_ROW} IS NOT NULL")
            execute(f"UPDATE facts SET facts = {without_keys('facts', GPS)}, gps = 0")
            execute("DELETE FROM facts WHERE facts = '{}'")
            execute(f"UPDATE images SET metadata = with_facts(metadata, {OF_ROW}) WHERE {OF_ROW} IS NOT NULL")
        changes: dict[str, str | None] = {} if gps is None else {GPS_SETTING: "true" if gps else None}
        if not catalog.count("indexed"):
            changes[FACTS_SETTING] = READ
        elif describe or (gps and not had_gps):
            changes[FACTS_SETTING] = UNREAD
        catalog.set(changes)


def count_undescribed(catalog: "CatalogWriter") -> int:
    """The number of contents to read now: 0 where all were read."""
    if catalog.setting(FACTS_SETTING) != UNREAD:
        return 0
    return int(catalog.connection.execute(f"SELECT count(*) FROM images WHERE {UNREAD_ROWS}").fetchone()[0])


def record_facts(catalog: "CatalogWriter", found: Iterable[tuple[str, Mapping[str, Any]]], *, is_pass: bool) -> None:
    """Record facts, given as (SHA-256, facts), and merge them into the metadata of all rows with that content.

    In a pass over all files also those without facts are recorded, until it ends, so that a stopped one continues.
    """
    has_gps = catalog.setting(GPS_SETTING) is not None
    rows = []
    for sha256, facts in found:
        kept = {name: value for name, value in facts.items() if has_gps or name not in GPS}
        if kept or is_pass:
            rows.append((sha256, json.dumps(kept, sort_keys=True), has_gps))
    with catalog.transaction():
        catalog.connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)
        catalog.connection.executemany(
            "UPDATE images SET metadata = with_facts(metadata, ?2) WHERE sha256 = ?1",
            (row[:2] for row in rows if row[1] != "{}"),
        )


def end_pass(catalog: "CatalogWriter") -> None:
    """All files were read, or cannot be."""
    with catalog.transaction() as execute:
        execute("DELETE FROM facts WHERE facts = '{}'")
        catalog.set({FACTS_SETTING: READ})
