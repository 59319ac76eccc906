"""The log of who did what to a gallery: JSON lines that are on the disk soon, and reading them.

GALLERY/people/log/changes-00000001.jsonl   decisions, undoing, images added and removed, updates, evaluations, and ends
GALLERY/people/log/exports-00000001.jsonl   what was downloaded, apart, so that readers cannot push changes out
GALLERY/people/log/visits-00000001.jsonl    signing in and out, and who was refused: nor can those who guess tokens
GALLERY/people/log/restored-9f….jsonl       what `retrieval restore` brought from a backup

A line is a JSON object: `at` (UTC), `who`, `from`, `what`, `request`, and what belongs to `what`. Several processes may
write at once, so that lines are appended and files followed by others, never renamed as `RotatingFileHandler` does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.durable import replacing, sync_path
from index.errors import InputError
from index.text import printable_path
from index.versions.people import log_folder

logger = logging.getLogger(__name__)

CHANGES, EXPORTS, VISITS = SERIES = ("changes", "exports", "visits")
"""The last are given up first, where there is no room for all lines in memory."""
EXPORT, SIGN_IN, SIGN_OUT, REFUSED = "export", "sign-in", "sign-out", "sign-in-refused"
_SERIES = {EXPORT: EXPORTS, SIGN_IN: VISITS, SIGN_OUT: VISITS, REFUSED: VISITS}
THE_SERVER = "the server"
"""Who did what nobody asked for."""
FILE_BYTES, MOST_FILES = 4 << 20, 32
"""A file of more bytes is followed by another; of more files of a series the oldest goes: 128 MiB at most."""
MOST_WAIT_S = 0.5  # of who has a line written; it is written all the same
MOST_LINES = 2000  # that wait for a disk that takes none
_AGAIN_S = 5.0  # after a failure
_TELL_S = 60.0  # between two words of the server's log about that
_CLOSE_S = 5.0
_NUMBERED = re.compile(r"(changes|exports|visits)-(\d{8})\.jsonl")
_NEEDED = ("at", "who", "from", "what", "request")

Line = dict[str, Any]


@dataclass(eq=False, slots=True)
class _Waiting:
    """A line that is to be written."""

    series: str
    text: bytes
    done: threading.Event = field(default_factory=threading.Event)


class ActivityLog:
    """The log of a gallery; any number of threads may write to it, and other processes too.

    What fails, as on a full disk, costs nobody anything: lines wait for the disk, and of too many the oldest are lost,
    those of visits first and those of changes last, which a line tells once there is room.
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
        waiting = _make_line(what, who=who, address=address, request=request, **details)
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
            _make_folder(self._folder)
            for series in SERIES:
                lines = [line for line in batch if line.series == series]
                self._append(series, lines)
                written += lines
            if lost := self._lost:
                self._append(CHANGES, [_make_line("lines-lost", who=THE_SERVER, address="", lines=lost)])
                with self._changed:
                    self._lost -= lost
            self._fails = False
        except OSError as error:
            self._fails = True
            if time.monotonic() - self._told_at >= _TELL_S:
                self._told_at = time.monotonic()
                shown = printable_path(str(self._folder))
                logger.error("%s: who did what cannot be logged, and is kept in memory: %s", shown, error)
        with self._changed:
            done = set(written)
            self._lines = deque(line for line in self._lines if line not in done)
        for line in batch:
            line.done.set()

    def _append(self, series: str, lines: list[_Waiting]) -> None:
        """Add lines to a series' file durably; after a failure all are added again, and read once."""
        if not lines:
            return
        path = _next_file(self._folder, series)
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")  # a power cut or a full disk left a part of a line
            for line in lines:
                rest = memoryview(line.text)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_path(self._folder)
            for oldest in list_files(self._folder, series)[:-MOST_FILES]:
                oldest.unlink(missing_ok=True)


def _make_line(what: str, *, who: str, address: str, request: str = "", **details: Any) -> _Waiting:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"at": at, "who": who, "from": address, "what": what, "request": request, **details}
    return _Waiting(_SERIES.get(what, CHANGES), json.dumps(line).encode() + b"\n")


def _make_folder(folder: Path) -> None:
    """Make the folder of a log where there is none; the gallery's own is there, or has been removed."""
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)


def list_files(folder: Path, series: str) -> list[Path]:
    """The files of a series, the oldest first."""
    found = ((path, _NUMBERED.fullmatch(path.name)) for path in _list(folder))
    return sorted(path for path, match in found if match is not None and match[1] == series)


def _next_file(folder: Path, series: str) -> Path:
    """The file that the next line of a series belongs to; it may have to be made."""
    last = list_files(folder, series)[-1:]
    if last and last[0].stat().st_size < FILE_BYTES:
        return last[0]
    number = int(last[0].stem.rpartition("-")[2]) + 1 if last else 1
    return folder / f"{series}-{number:08}.jsonl"


def read_log(gallery: Path, *, since: datetime | None = None, who: str | None = None) -> list[Line]:
    """The lines of a gallery's log, in the order of their times; nothing where there is none.

    A line that a power cut left unfinished is left out.
    """
    folder, found = log_folder(gallery), dict[str, Line]()
    try:
        for path in _list(folder):
            if path.suffix == ".jsonl":
                with path.open("rb") as file:
                    found.update((_write(line), line) for line in _choose(file, since=since, who=who))
    except OSError as error:
        shown = printable_path(str(folder))
        raise InputError(f"{shown}: the log cannot be read: {error.strerror or error}") from error
    return sorted(found.values(), key=lambda line: read_time(line["at"]))


def bring_lines(gallery: Path, lines: Iterable[Line]) -> int:
    """Add the lines of a backup that the log does not have; how many."""
    known = {_write(line) for line in read_log(gallery)}
    new = [text for text in dict.fromkeys(map(_write, lines)) if text not in known]
    if not new:
        return 0
    content = "".join(f"{text}\n" for text in new).encode()
    folder = log_folder(gallery)
    try:
        _make_folder(folder)
        with replacing(
            folder / f"restored-{hashlib.sha256(content).hexdigest()[:16]}.jsonl", mode=0o600
        ) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        shown = printable_path(str(folder))
        raise InputError(
            f"{shown}: the log cannot be restored: {error.strerror or error}; mend it and run it again"
        ) from error
    return len(new)


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


def _list(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _choose(lines: Iterable[bytes], *, since: datetime | None, who: str | None) -> Iterator[Line]:
    for text in lines:
        try:
            line = check_line(json.loads(text))
        except (InputError, ValueError, RecursionError):
            continue
        if (who is None or line["who"] == who) and (since is None or read_time(line["at"]) >= since):
            yield line


def _write(line: Line) -> str:
    return json.dumps(line, sort_keys=True)
