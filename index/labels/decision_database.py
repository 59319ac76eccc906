"""The file of people's decisions about labels, as every reader gets it: a SQLite database beside the gallery."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from index.errors import GalleryError
from index.labels.decisions import CHANGE, OPEN, LabelDecision, LabelKey
from index.text import printable_path

VERSION = 1
_LABELS = "SELECT d.step, sha256, label, decision, new_label, image_id, path, {when} FROM label_decisions AS d"
_LAST = (
    " JOIN steps AS s ON s.number = d.step "
    "WHERE d.step = (SELECT max(step) FROM label_decisions WHERE sha256 = d.sha256 AND label = d.label) "
    "ORDER BY d.step, image_id"
)


def check_version(connection: sqlite3.Connection) -> int:
    """The version of an open file; 0 where nothing was ever written into it.

    Raises:
        sqlite3.DatabaseError: a newer program wrote it.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, this program knows {VERSION}; use a newer program")
    return version


def read_labels(connection: sqlite3.Connection, *, holding: bool = False) -> Iterator[tuple[int, LabelDecision]]:
    """(step, decision) of all decisions about labels; or of those that hold, in their order and with their time."""
    query = _LABELS.format(when="s.decided_at") + _LAST if holding else _LABELS.format(when="''")
    for step, sha256, label, decision, new_label, image_id, path, when in connection.execute(query):
        yield (
            step,
            LabelDecision(sha256, label or None, decision, new_label, image_id, os.fsdecode(path), when),
        )


def data_version(connection: sqlite3.Connection) -> int:
    """SQLite's `data_version`: another value after every commit of any other connection."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def read_held_labels(
    path: Path, *, wait_s: float
) -> tuple[Mapping[LabelKey, LabelDecision], sqlite3.Connection, int]:
    """The decisions about labels that hold, without those that were taken back; the connection; its `data_version`.

    The connection stays open to tell later commits by, and then never waits for a lock. To read the file's header
    instead is no choice: closing the file would take away the locks that this process has on it.

    Args:
        wait_s: seconds to wait while somebody else writes.

    Raises:
        GalleryError: the file is missing, damaged, locked for longer, or no file of decisions.
    """
    connection = None
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"  # what a killed process left is rolled back; else only read
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=wait_s)
        version = data_version(connection)  # before the rest: a commit in between is seen as a later one
        held = [one for _, one in read_labels(connection, holding=True)] if check_version(connection) else []
        if any(one.decision == CHANGE and not isinstance(one.new_label, str) for one in held):
            raise TypeError("a changed label has no new one")
        connection.execute("PRAGMA busy_timeout = 0")
    except (sqlite3.Error, TypeError) as error:
        if connection is not None:
            connection.close()
        problem = f"the label decisions cannot be read: {error}"
        advice = "put a sound copy of the file back, or move it away to go on without the decisions in it"
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            advice = "another program is writing it; try again when that is done, and leave the file where it is"
        raise GalleryError(printable_path(str(path)), f"{problem}; {advice}") from error
    return {one.key: one for one in held if one.decision != OPEN}, connection, version
