"""Activity log: who did what to a gallery, in a table beside the decisions.

A line is a JSON object: `at` (UTC), `who`, `from`, `what`, `request`, and the details of `what`. Each series of lines
has room of its own: exports and failed sign-ins do not push out the changes.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.errors import InputError
from index.text import valid_text
from index.versions.annotations import log_file
from retrieval_app.review.database import Database, ReviewError

logger = logging.getLogger(__name__)

CHANGES, EXPORTS, VISITS = SERIES = ("changes", "exports", "visits")
EXPORT, SIGN_IN, SIGN_OUT, REFUSED = "export", "sign-in", "sign-out", "sign-in-refused"
_SERIES = {EXPORT: EXPORTS, SIGN_IN: VISITS, SIGN_OUT: VISITS, REFUSED: VISITS}
MOST_BYTES = 128 << 20
"""Size of the lines of a series; the oldest go."""
TRIM_EVERY = 1000  # lines
MOST_WAITING = 2000  # lines of a series that could not be written; the oldest go
MOST_WAIT_S = 0.5  # longest wait of a request for its line; the line is written in any case
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


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request; by default the server itself, for work without a request."""

    name: str = "the server"
    address: str = ""
    request: str = ""


class ActivityLog:
    """The log of a gallery, for any number of threads and processes; unwritten lines wait for the next write."""

    def __init__(self, gallery: Path) -> None:
        self._database = _open(gallery)
        self._lock = threading.Lock()
        self._waiting = {series: deque[tuple[str, str, str]](maxlen=MOST_WAITING) for series in SERIES}
        self._writer = ThreadPoolExecutor(1, "activity-log")
        self._written: Future[None] | None = None
        self._untrimmed = TRIM_EVERY

    def record(self, what: str, client: Client, *, wait: bool = True, **details: Any) -> None:
        """Write a line; return once it is on the disk, or after a moment. An event loop does not wait."""
        row = _make_row(what, client, **details)
        with self._lock:
            self._waiting[row[0]].append(row)
        written = self._written
        if written is None or written.running() or written.done():  # else the write that is to come has the line
            try:
                self._written = written = self._writer.submit(self._write)
            except RuntimeError:  # closed: the thread of an abandoned request
                self._write()
                return
        if wait:
            wait_for([written], timeout=MOST_WAIT_S)

    def close(self) -> None:
        """Write the lines that wait; may be called twice."""
        self._writer.shutdown()
        self._write()
        self._database.close()

    def _write(self) -> None:
        """Write all lines that wait in one transaction."""
        with self._lock:
            rows = [row for waiting in self._waiting.values() for row in waiting]
        if not rows:  # an earlier call wrote them
            return
        try:
            with self._database.writing() as connection:
                connection.executemany(_INSERT, rows)
                self._untrimmed += len(rows)
                if self._untrimmed >= TRIM_EVERY:
                    connection.execute(_TRIM, (MOST_BYTES,))
                    self._untrimmed = 0
        except Exception as error:  # whatever it is, the lines are kept
            known = isinstance(error, ReviewError)
            logger.error("%s; %d lines of the activity log wait", error, len(rows), exc_info=not known)
            return
        written = set(rows)
        with self._lock:
            for waiting in self._waiting.values():
                while waiting and waiting[0] in written:
                    waiting.popleft()


def record_command(gallery: Path, what: str, **details: Any) -> None:
    """Write a line about what a command did, and not a server; it is done, also where no line can be written."""
    row = _make_row(what, Client("the command line"), **details)
    try:
        with closing(_open(gallery)) as database, database.writing() as connection:
            connection.execute(_INSERT, row)
    except ReviewError as error:
        logger.error("%s; the activity log has no line about this command, which is done", error)


def _make_row(what: str, client: Client, **details: Any) -> tuple[str, str, str]:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"at": at, "who": client.name, "from": client.address, "what": what, "request": client.request}
    return _pack({**line, **details})


def _pack(line: Line) -> tuple[str, str, str]:
    """The row of a line, the same for equal ones."""
    return _SERIES.get(line["what"], CHANGES), valid_text(line["who"]), json.dumps(line, sort_keys=True)


def _open(gallery: Path) -> Database:
    return Database(log_file(gallery), _SCHEMA, mode=0o600)  # it tells the addresses of people


def read_log(gallery: Path, *, since: datetime | None = None, who: str | None = None) -> list[Line]:
    """The lines of a gallery's log in the order of their times, without damaged ones."""
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
    """Add the lines of a backup that the log does not have; the number of them."""
    if not (rows := [_pack(line) for line in lines]):
        return 0
    with closing(_open(gallery)) as database, database.writing() as connection:
        return connection.executemany(_INSERT, rows).rowcount


def check_line(values: Line) -> Line:
    """The line, if it has the fields of one; else an InputError."""
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
