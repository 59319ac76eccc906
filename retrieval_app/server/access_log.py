"""Access log: a JSON line for every request, without queries, tokens and names of photos.

    {"time": "2026-01-31T12:00:00.123Z", "event": "request", "request_id": "9f…", "method": "GET", …}

A thread writes the lines, so that no request waits for a disk. The file may be moved away at any time, as log rotation
does.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import Full, Queue
from typing import Any

import orjson

from index.errors import InputError
from index.text import printable_path
from retrieval_app.api.metrics import Observer, RequestRecord

logger = logging.getLogger(__name__)

STDOUT = Path("-")
LINES_WAITING = 10_000
_MODE = 0o640
_WARN_S = 60.0  # between two warnings that lines are dropped
_CLOSE_S = 5.0


@contextmanager
def open_access_log(path: Path | None) -> Iterator[list[Observer]]:
    """Observers of requests that write the lines; none without a path."""
    if path is None:
        yield []
        return
    writer = LineWriter(path)
    try:
        yield [lambda record: writer.write(_describe(record))]
    finally:
        writer.close()


class LineWriter:
    """A thread that adds JSON lines to a file, which it opens for every line, or to standard output (`-`)."""

    def __init__(self, path: Path, *, capacity: int = LINES_WAITING) -> None:
        self._path, self._stream = path, sys.stdout
        self._shown = "standard output" if path == STDOUT else printable_path(path)
        try:
            if path != STDOUT:
                self._append(b"")
        except OSError as error:
            raise InputError(f"--access-log {self._shown}: cannot be written: {error.strerror}") from error
        self._queue = Queue[bytes | None](capacity)
        self._warned_at = -_WARN_S
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def write(self, line: dict[str, Any]) -> None:
        """Add a line, or drop it where too many wait; never waits."""
        try:
            self._queue.put_nowait(orjson.dumps(line) + b"\n")
        except Full:
            self._warn("too many lines wait")

    def close(self) -> None:
        """Write the lines that wait, for a few seconds at most."""
        with suppress(Full):
            self._queue.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._append(line)
            except (OSError, ValueError) as error:  # a full disk, or a closed stream
                self._warn(error.strerror if isinstance(error, OSError) else error)

    def _warn(self, problem: object) -> None:
        if time.monotonic() - self._warned_at >= _WARN_S:
            self._warned_at = time.monotonic()
            logger.warning("the log %s cannot be written, lines are dropped: %s", self._shown, problem)

    def _append(self, line: bytes) -> None:
        if self._path == STDOUT:
            self._stream.write(line.decode())
            self._stream.flush()
            return
        with open(self._path, "ab", opener=partial(os.open, mode=_MODE)) as file:
            file.write(line)


def _describe(record: RequestRecord) -> dict[str, Any]:
    visitor = record.visitor
    time_utc = datetime.fromtimestamp(record.at_s, UTC).isoformat(timespec="milliseconds")
    return {
        "time": time_utc.replace("+00:00", "Z"),
        "event": "request",
        "request_id": record.request_id,
        **({} if record.gallery is None else {"gallery": record.gallery}),
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "bytes": record.sent_bytes,
        "ms": round(record.seconds * 1000, 3),
        "address": visitor.address,
        "name": visitor.name,
        "has_token": visitor.has_token,
    }
