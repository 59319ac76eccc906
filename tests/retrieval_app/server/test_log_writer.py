"""Lines reach the file in their order, whatever becomes of it; what cannot be written is counted and said."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from index.errors import InputError
from retrieval_app.server.log_writer import LogWriter


@contextmanager
def _writing(path: Path | int, *, capacity: int = 1000) -> Iterator[LogWriter]:
    writer = LogWriter(
        path, render=str.encode, tell_dropped=lambda count: b"dropped %d" % count, capacity=capacity
    )
    try:
        yield writer
    finally:
        writer.close()


def _wait(is_done: Callable[[], bool], *, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < until, "it did not come in time"
        time.sleep(0.01)


def test_lines_are_added_in_their_order_and_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    with _writing(path) as writer:
        for number in range(700):
            writer.write(str(number))
    assert path.read_text().splitlines() == ["before", *map(str, range(700))]
    with pytest.raises(InputError, match=r"--access-log .*gone/log: cannot be written: No such file"):
        LogWriter(tmp_path / "gone" / "log", render=str.encode, tell_dropped=lambda _: b"")


def test_a_file_that_was_moved_away_is_made_anew_and_not_for_other_users(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with _writing(path) as writer:
        writer.write("one")
        _wait(lambda: path.read_text() == "one\n")
        assert path.stat().st_mode & 0o007 == 0
        path.rename(tmp_path / "log.1")
        writer.write("two")
        _wait(lambda: (tmp_path / "log.1").read_text() == "one\ntwo\n")
        writer.reopen()
        _wait(path.exists)
        writer.write("three")
    assert path.read_text() == "three\n"


def test_on_a_full_disk_dropped_lines_are_told_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")  # every write to which fails as on a full disk
    with caplog.at_level(logging.WARNING), _writing(path) as writer:
        writer.write("one")
        _wait(lambda: "cannot be written" in caplog.text)
        writer.write("two")
        _wait(lambda: writer._failed == 2)
        path.unlink()
        writer.reopen()
        _wait(path.exists)
        writer.write("three")
    assert path.read_text() == "dropped 2\nthree\n"
    assert caplog.text.count("cannot be written") == 1
    assert "No space left on device" in caplog.text


def test_a_file_that_takes_nothing_holds_nobody_up_and_what_was_dropped_is_told() -> None:
    read, written = os.pipe()
    with _writing(written, capacity=10) as writer:
        started = time.monotonic()
        for _ in range(30):
            writer.write("x" * 60_000)  # a pipe holds 65,536 bytes: the second blocks the thread
        assert time.monotonic() - started < 1
        dropped = writer._refused
        assert dropped >= 30 - 10 - 10
        with os.fdopen(read, "rb", buffering=0) as reader:
            received, said = b"", b"dropped %d\n" % dropped
            while said not in received or received.count(b"x" * 60_000) < 30 - dropped:
                if said not in received and writer._queue.empty():
                    writer.write("last")
                received += reader.read(65_536)
    assert received.count(said) == 1
    os.close(written)
