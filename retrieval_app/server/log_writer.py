"""Lines that a thread of its own adds to a file: no request waits for a disk, and none fails because it is full."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from index.errors import InputError
from index.text import printable_path

logger = logging.getLogger(__name__)

_LOOK_S = 0.5  # between two looks whether to open the file anew
_WARN_S = 60.0  # between two warnings that nothing can be written
_GATHER_S = 0.05  # that lines wait for others: one write for many takes little from the threads that answer
_AT_ONCE = 2048
_CLOSE_S = 5.0
_MODE = 0o640


class LogWriter:
    """Adds lines to a file, in their order. Those that do not fit the queue or the disk are dropped, and counted.

    Args:
        path: of the file, which is made where there is none; a number is that of a file that is open, which stays so.
        render: a line without its end, from what `write` was given; called by the thread.
        tell_dropped: the line that says how many were dropped before it.
        capacity: lines that wait.

    Raises:
        InputError: the file cannot be opened.
    """

    def __init__(
        self,
        path: Path | int,
        *,
        render: Callable[[Any], bytes],
        tell_dropped: Callable[[int], bytes],
        capacity: int = 10_000,
    ) -> None:
        self._path, self._render, self._tell_dropped, self._capacity = path, render, tell_dropped, capacity
        self._shown = f"file {path}" if isinstance(path, int) else printable_path(str(path))
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._refused, self._refused_told = 0, 0  # by the queue; only the loop counts, only the thread tells
        self._failed = 0  # by the disk
        self._is_torn, self._is_closed, self._wants_new = False, False, False
        self._warned_at = -_WARN_S
        try:
            self._file = self._open()
        except OSError as error:
            raise InputError(f"--access-log {self._shown}: cannot be written: {error.strerror}") from error
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def write(self, item: Any) -> None:
        """Add a line; never waits."""
        if self._queue.qsize() >= self._capacity:
            self._refused += 1
        else:
            self._queue.put(item)

    def reopen(self) -> None:
        """Go on in the file that has the name now; may be called by a signal's handler."""
        self._wants_new = True

    def close(self) -> None:
        """Write what waits, for a few seconds at most."""
        self._is_closed = True
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        while True:
            is_last = self._is_closed  # what was added before it was closed is still taken
            items = list(self._take())
            if self._wants_new:
                self._wants_new = False
                self._change_file()
            refused = self._refused
            dropped = self._failed + refused - self._refused_told
            if items or (dropped and is_last):
                self._write_lines(items, dropped=dropped, refused=refused)
            elif is_last:
                break
        if not isinstance(self._path, int):
            os.close(self._file)

    def _take(self) -> Iterator[Any]:
        with suppress(Empty):
            yield self._queue.get(timeout=0.01 if self._is_closed else _LOOK_S)
            if not self._is_closed:
                time.sleep(_GATHER_S)
            for _ in range(_AT_ONCE):
                yield self._queue.get_nowait()

    def _write_lines(self, items: list[Any], *, dropped: int, refused: int) -> None:
        lines = [self._render(item) for item in items]
        if dropped:
            lines.insert(0, self._tell_dropped(dropped))
        data = b"".join(line + b"\n" for line in lines)
        try:
            self._write_all(b"\n" + data if self._is_torn else data)
        except OSError as error:
            self._failed += len(items)
            self._warn(error)
            if self._is_closed:
                self._failed, self._refused_told = 0, refused  # nobody can be told any more
        else:
            self._failed, self._refused_told, self._is_torn = 0, refused, False

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            count = os.write(self._file, left)
            self._is_torn = data[len(data) - len(left) + count - 1 : len(data) - len(left) + count] != b"\n"
            left = left[count:]

    def _open(self) -> int:
        if isinstance(self._path, int):
            return self._path
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _change_file(self) -> None:
        if isinstance(self._path, int):
            return
        try:
            opened = self._open()
        except OSError as error:
            self._warn(error)
            return
        os.close(self._file)
        self._file, self._is_torn = opened, False

    def _warn(self, error: OSError) -> None:
        if time.monotonic() - self._warned_at >= _WARN_S:
            self._warned_at = time.monotonic()
            logger.warning("the log %s cannot be written, lines are dropped: %s", self._shown, error.strerror)
