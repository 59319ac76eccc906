"""Activity log: who did what to a gallery, in a table beside the decisions.

A line is a JSON object: `at` (UTC), `who`, `from`, `what`, `request`, and what belongs to `what`. Each series of lines
has room of its own: readers who export, or people who guess tokens, do not push out the changes.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.errors import InputError
from index.text import valid_text
from index.versions.people import log_file
from retrieval_app.review.database import Database, ReviewError

logger = logging.getLogger(__name__)

CHANGES, EXPORTS, VISITS = SERIES = ("changes", "exports", "visits")
"""The last are given up first, where there is no room for all lines in memory."""
EXPORT, SIGN_IN, SIGN_OUT, REFUSED = "export", "sign-in", "sign-out", "sign-in-refused"
_SERIES = {EXPORT: EXPORTS, SIGN_IN: VISITS, SIGN_OUT: VISITS, REFUSED: VISITS}
THE_SERVER = "the server"
"""Who did what nobody asked for."""
MOST_BYTES = 128 << 20
"""Of the lines of a series; the oldest go."""
TRIM_EVERY = 1000  # lines
MOST_WAIT_S = 0.5  # that a request waits for its line; the line is written all the same
MOST_LINES = 2000  # that wait for a disk that takes none
_AGAIN_S = 5.0  # after a failure
_TELL_EVERY_S = 60.0  # that it fails
_CLOSE_S = 5.0
_NEEDED = ("at", "who", "from", "what", "request")
_SCHEMA = """
CREATE TABLE lines (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    series TEXT NOT NULL CHECK (series IN ('changes', 'exports', 'visits')),
    who TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    line TEXT NOT NULL UNIQUE                  -- JSON
);
CREATE INDEX lines_by_series ON lines (series, number, bytes);
"""
_INSERT = "INSERT OR IGNORE INTO lines (series, who, line, bytes) VALUES (?, ?, ?3, length(?3))"
_TRIM = """
DELETE FROM lines WHERE number IN (
    SELECT number FROM (
        SELECT number, sum(bytes) OVER (PARTITION BY series ORDER BY number DESC) AS total FROM lines
    ) WHERE total > ?
)
"""

Line = dict[str, Any]


@dataclass(eq=False, slots=True)
class _Waiting:
    """A line that is to be written."""

    row: tuple[str, str, str]
    done: threading.Event = field(default_factory=threading.Event)


class ActivityLog:
    """The log of a gallery; any number of threads may write to it, and other processes too.

    A failure, such as a full disk, holds no request up: lines wait for the disk, and of too many the oldest are lost,
    those of visits first and those of changes last. A line tells how many, once there is room.
    """

    def __init__(self, gallery: Path) -> None:
        self._database = _open(gallery)
        self._lines: list[_Waiting] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._lost, self._untrimmed, self._closed, self._fails = 0, TRIM_EVERY, False, False
        self._tell_at = 0.0

    def record(
        self, what: str, *, who: str, address: str, request: str = "", wait: bool = True, **details: Any
    ) -> None:
        """Write a line; return once it is on the disk, or after a moment; at once where nobody is to wait."""
        waiting = _Waiting(_make_row(what, who=who, address=address, request=request, **details))
        with self._changed:
            self._lines.append(waiting)
            while len(self._lines) > MOST_LINES:
                least = max(self._lines, key=lambda line: SERIES.index(line.row[0]))  # of equal ones the first
                self._lines.remove(least)
                least.done.set()
                self._lost += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="activity-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if self._fails or not wait:
                return
        waiting.done.wait(MOST_WAIT_S)

    def close(self) -> None:
        """Write what waits, if that can be done; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                if self._fails:
                    self._changed.wait_for(lambda: self._closed, _AGAIN_S)
                self._changed.wait_for(lambda: self._lines or self._closed)
                batch, lost, is_last = list(self._lines), self._lost, self._closed
            if batch or lost:
                self._write(batch, lost=lost)
        self._database.close()

    def _write(self, batch: list[_Waiting], *, lost: int) -> None:
        """Write lines in one transaction; those that were written wait no longer."""
        rows = [line.row for line in batch]
        if lost:
            rows.append(_make_row("lines-lost", who=THE_SERVER, address="", lines=lost))
        try:
            with self._database.writing() as connection:
                connection.executemany(_INSERT, rows)
                self._untrimmed += len(rows)
                if self._untrimmed >= TRIM_EVERY:
                    connection.execute(_TRIM, (MOST_BYTES,))
                    self._untrimmed = 0
        except ReviewError as error:
            if (now := time.monotonic()) >= self._tell_at:
                logger.error("who did what cannot be logged, and is kept in memory: %s", error)
                self._tell_at = now + _TELL_EVERY_S
            self._fails = True
        else:
            self._fails, self._tell_at = False, 0.0
            with self._changed:
                written = set(batch)
                self._lines = [line for line in self._lines if line not in written]
                self._lost -= lost
        for line in batch:
            line.done.set()


def _make_row(what: str, *, who: str, address: str, request: str = "", **details: Any) -> tuple[str, str, str]:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    return _pack({"at": at, "who": who, "from": address, "what": what, "request": request, **details})


def _pack(line: Line) -> tuple[str, str, str]:
    """The row of a line, the same for equal ones."""
    return _SERIES.get(line["what"], CHANGES), valid_text(line["who"]), json.dumps(line, sort_keys=True)


def _open(gallery: Path) -> Database:
    return Database(log_file(gallery), _SCHEMA, mode=0o600)  # it tells the addresses of people


def read_log(gallery: Path, *, since: datetime | None = None, who: str | None = None) -> list[Line]:
    """The lines of a gallery's log, in the order of their times; nothing where there is none, damaged ones left out.

    Raises:
        ReviewError: it cannot be read.
    """
    lines = list[Line]()
    with closing(_open(gallery)) as database, database.reading() as connection:
        if connection is not None:
            sql = "SELECT CAST(line AS BLOB) FROM lines WHERE ? IN (who, '') ORDER BY number"
            for (text,) in connection.execute(sql, (who or "",)):
                with suppress(TypeError, ValueError, RecursionError, InputError):
                    lines.append(check_line(json.loads(text)))
    if since is not None:
        lines = [line for line in lines if read_time(line["at"]) >= since]
    return sorted(lines, key=lambda line: read_time(line["at"]))


def bring_lines(gallery: Path, lines: Iterable[Line]) -> int:
    """Add the lines of a backup that the log does not have; how many."""
    if not (rows := [_pack(line) for line in lines]):
        return 0
    with closing(_open(gallery)) as database, database.writing() as connection:
        return connection.executemany(_INSERT, rows).rowcount


def check_line(values: Line) -> Line:
    """The line, if it is one of a log."""
    try:
        if not all(isinstance(values[name], str) for name in _NEEDED):
            raise TypeError("expected texts")
        read_time(values["at"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"no line of a log: {type(error).__name__}: {error}") from error
    return values


def read_time(text: str) -> datetime:
    """A time of ISO 8601; UTC where it names no zone."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
