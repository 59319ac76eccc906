"""Writing the log of who did what: each line is on the disk soon, and nothing that is logged waits long for that."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.durable import sync_path
from index.text import printable_path
from index.versions.people import log_folder
from retrieval_app.review.log_files import (
    CHANGES,
    EXPORTS,
    SERIES,
    VISITS,
    drop_oldest,
    make_log_folder,
    next_file,
)

logger = logging.getLogger(__name__)

EXPORT, SIGN_IN, SIGN_OUT, REFUSED = "export", "sign-in", "sign-out", "sign-in-refused"
_SERIES = {EXPORT: EXPORTS, SIGN_IN: VISITS, SIGN_OUT: VISITS, REFUSED: VISITS}
THE_SERVER = "the server"
"""Who did what nobody asked for."""
MOST_WAIT_S = 0.5  # of who has a line written; it is written all the same
MOST_LINES = 2000  # that wait for a disk that takes none
_AGAIN_S = 5.0  # after a failure
_TELL_S = 60.0  # between two words of the server's log about that
_CLOSE_S = 5.0


class _Waiting:
    """A line that is to be written."""

    def __init__(self, series: str, text: bytes) -> None:
        self.series, self.text, self.done = series, text, threading.Event()


class ActivityLog:
    """The log of a gallery; any number of threads may write to it, and other processes too.

    What fails, as on a full disk, costs nobody anything: lines wait for the disk, and of too many the oldest are lost,
    those of visits first and those of changes last, which a line tells once there is room.

    Args:
        gallery: its folder.
    """

    def __init__(self, gallery: Path) -> None:
        self._folder = log_folder(gallery)
        self._lines: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._lost, self._closed, self._fails = 0, False, False
        self._told_at = -_TELL_S

    def record(
        self, what: str, *, who: str, address: str, request: str = "", wait: bool = True, **details: Any
    ) -> None:
        """Write a line; this returns once it is on the disk, or after a moment; at once where nobody is to wait."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "who": who, "from": address, "what": what, "request": request, **details}
        waiting = _Waiting(_SERIES.get(what, CHANGES), json.dumps(line).encode() + b"\n")
        with self._changed:
            self._lines.append(waiting)
            while len(self._lines) > MOST_LINES:
                self._give_up_one()
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

    def _give_up_one(self) -> None:
        least = max((line.series for line in self._lines), key=SERIES.index)
        line = next(line for line in self._lines if line.series == least)
        self._lines.remove(line)
        line.done.set()
        self._lost += 1

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closed:
                    self._changed.wait()
                batch, is_last = list(self._lines), self._closed
            if batch:
                self._write(batch)
            with self._changed:
                if is_last:
                    return
                if self._fails and not self._closed:
                    self._changed.wait_for(lambda: self._closed, _AGAIN_S)

    def _write(self, batch: list[_Waiting]) -> None:
        """Write lines, those of each series together; what was written waits no longer."""
        written = list[_Waiting]()
        try:
            make_log_folder(self._folder)
            for series in SERIES:
                written += self._append(series, [line for line in batch if line.series == series])
            self._tell_lost()
            self._fails = False
        except OSError as error:
            self._fails = True
            self._tell_failure(error)
        with self._changed:
            done = set(map(id, written))
            self._lines = deque(line for line in self._lines if id(line) not in done)
        for line in batch:
            line.done.set()

    def _tell_lost(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = {"at": at, "who": THE_SERVER, "from": "", "what": "lines-lost", "request": "", "lines": lost}
            self._append(CHANGES, [_Waiting(CHANGES, json.dumps(line).encode() + b"\n")])

    def _tell_failure(self, error: OSError) -> None:
        if time.monotonic() - self._told_at >= _TELL_S:
            self._told_at = time.monotonic()
            shown = printable_path(str(self._folder))
            logger.error("%s: who did what cannot be logged, and is kept in memory: %s", shown, error)

    def _append(self, series: str, lines: list[_Waiting]) -> list[_Waiting]:
        """Add lines to a series' file durably; after a failure all are added again, and read once."""
        if not lines:
            return lines
        path = next_file(self._folder, series)
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if _ends_within_line(descriptor):
                os.write(descriptor, b"\n")
            for line in lines:
                rest = memoryview(line.text)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_path(self._folder)
            drop_oldest(self._folder, series)
        return lines


def _ends_within_line(descriptor: int) -> bool:
    """Whether a power cut or a full disk left a part of a line at the end."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
