"""Access log: a JSON line for every request, another for each slow search, without queries, tokens and names of photos.

    {"time": "2026-01-31T12:00:00.123Z", "event": "request", "request_id": "9f…", "method": "GET", …}

A thread writes the lines, so that no request waits for a disk. Lines that fit neither the queue nor the disk are
dropped and counted. The file may be moved away at any time, as log rotation does.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import orjson

from index.errors import InputError
from index.text import printable_path
from retrieval_app.api.metrics import Observer, RequestRecord
from retrieval_app.server.options import LogConfig

logger = logging.getLogger(__name__)

STDOUT = Path("-")
LINES_WAITING = 10_000
MOST_SEARCHES = 8  # of one request that are listed one by one
_MODE = 0o640
_WARN_S = 60.0  # between two warnings that nothing can be written
_CLOSE_S = 5.0


@contextmanager
def open_access_log(config: LogConfig) -> Iterator[list[Observer]]:
    """Observers of requests that write the lines."""
    if config.access_log is None and config.slow_query_ms is None:
        yield []
        return
    writer = LineWriter(config.access_log)

    def write(record: RequestRecord) -> None:
        if config.access_log is not None:
            writer.write(_describe(record))
        ms = (record.seconds - record.watch.body_s) * 1000  # the arriving of bodies does not count
        if config.slow_query_ms is not None and record.watch.searches and ms > config.slow_query_ms:
            writer.write(_describe_slow(record, ms=ms))

    try:
        yield [write]
    finally:
        writer.close()


class LineWriter:
    """A thread that adds JSON lines to a file, in their order.

    It opens the file for every line, so that the file may be moved away. `-` is standard output, None standard error.
    """

    def __init__(self, path: Path | None, *, capacity: int = LINES_WAITING) -> None:
        self._path, self._stream = path, sys.stderr if path is None else sys.stdout
        self._shown = "standard output" if path in (None, STDOUT) else printable_path(path)
        try:
            if self._shown != "standard output":
                self._append(b"")
        except OSError as error:
            raise InputError(f"--access-log {self._shown}: cannot be written: {error.strerror}") from error
        self._queue = SimpleQueue[bytes | None]()
        self._capacity, self._refused, self._failed, self._reported = capacity, 0, 0, 0
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; never waits."""
        if self._queue.qsize() >= self._capacity:
            self._refused += 1
            return
        self._report_dropped()
        self._queue.put(orjson.dumps(line) + b"\n")

    def close(self) -> None:
        """Write the lines that wait, for a few seconds at most."""
        self._report_dropped()
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    @property
    def dropped(self) -> int:
        """Lines that were dropped since a line reported their number."""
        return self._refused + self._failed - self._reported

    def _report_dropped(self) -> None:
        if count := self.dropped:
            self._reported += count
            line = {"time": _show_time(time.time()), "event": "dropped", "lines": count}
            self._queue.put(orjson.dumps(line) + b"\n")

    def _run(self) -> None:
        warned_at = -_WARN_S
        while (line := self._queue.get()) is not None:
            try:
                self._append(line)
            except (OSError, ValueError) as error:  # a full disk, or a closed stream
                self._failed += 1
                if time.monotonic() - warned_at >= _WARN_S:
                    warned_at = time.monotonic()
                    reason = error.strerror if isinstance(error, OSError) else error
                    logger.warning("the log %s cannot be written, lines are dropped: %s", self._shown, reason)

    def _append(self, line: bytes) -> None:
        if self._path is None or self._path == STDOUT:
            self._stream.write(line.decode())
            self._stream.flush()
            return
        with open(self._path, "ab", opener=partial(os.open, mode=_MODE)) as file:
            file.write(line)


def _describe(record: RequestRecord) -> dict[str, Any]:
    visitor = record.visitor
    return {
        **_begin_line("request", record),
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "bytes": record.sent_bytes,
        "ms": round(record.seconds * 1000, 3),
        "address": visitor.address,
        "name": visitor.name,
        "has_token": visitor.has_token,
    }


def _describe_slow(record: RequestRecord, *, ms: float) -> dict[str, Any]:
    watch = record.watch
    return {
        **_begin_line("slow_search", record),
        "route": record.route,
        "status": record.status,
        "ms": round(ms, 3),
        "body_ms": round(watch.body_s * 1000, 3),
        "embed_ms": round(watch.embed_s * 1000, 3),
        "searches_count": len(watch.searches),
        "searches": [one.to_json() for one in watch.searches[:MOST_SEARCHES]],
    }


def _begin_line(event: str, record: RequestRecord) -> dict[str, str]:
    one_of_several = {} if record.gallery is None else {"gallery": record.gallery}
    return {"time": _show_time(record.at_s), "event": event, "request_id": record.request_id, **one_of_several}


def _show_time(seconds: float) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
