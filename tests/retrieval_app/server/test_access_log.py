"""Lines reach the file in their order; what cannot be written is dropped with a warning."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from index.errors import InputError
from retrieval_app.server.access_log import STDOUT, LineWriter
from tests.waiting import wait_for


@contextmanager
def _writing(path: Path, *, capacity: int = 1000) -> Iterator[LineWriter]:
    writer = LineWriter(path, capacity=capacity)
    try:
        yield writer
    finally:
        writer.close()


def _read(path: Path) -> list[Any]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_lines_are_added_in_their_order_and_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"n":-1}\n')
    with _writing(path) as writer:
        for number in range(700):
            writer.write({"n": number})
    assert _read(path) == [*range(-1, 700)]
    with pytest.raises(InputError, match=r"--access-log .*gone/log: cannot be written: No such file"):
        LineWriter(tmp_path / "gone" / "log", capacity=1)


def test_a_file_that_was_moved_away_is_made_anew_and_not_for_other_users(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with _writing(path) as writer:
        writer.write({"n": 1})
        wait_for(lambda: _read(path) == [1])
        path.rename(tmp_path / "log.1")
        writer.write({"n": 2})
    assert (_read(tmp_path / "log.1"), _read(path)) == ([1], [2])
    assert path.stat().st_mode & 0o007 == 0


def test_a_full_disk_drops_lines_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")  # every write to which fails as on a full disk
    with caplog.at_level(logging.WARNING), _writing(path) as writer:
        writer.write({"n": 1})
        writer.write({"n": 2})
        wait_for(lambda: "cannot be written" in caplog.text and writer._queue.empty())
        path.unlink()
        writer.write({"n": 3})
    assert _read(path)[-1] == 3
    assert caplog.text.count("cannot be written") == 1


def test_a_stuck_file_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    gate, written = SimpleQueue[None](), list[str]()

    class Slow:
        """Standard output, as a program that reads it slowly."""

        def write(self, text: str) -> None:
            gate.get()
            written.append(text)

        def flush(self) -> None:
            """At once."""

    monkeypatch.setattr(sys, "stdout", Slow())
    with _writing(STDOUT, capacity=10) as writer:
        for number in range(30):
            writer.write({"n": number})  # would never end, if it waited
        for _ in range(30):
            gate.put(None)
    told = [json.loads(text)["n"] for text in written]
    assert 10 <= len(told) <= 11  # one more where the writer took the first before all were there
    assert told[:10] == [*range(10)]
    assert "too many lines wait" in caplog.text
