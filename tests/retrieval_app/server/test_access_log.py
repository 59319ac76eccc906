"""Lines reach the file in their order, whatever becomes of it; what cannot be written is counted and said."""

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
def _writing(path: Path | None, *, capacity: int = 1000) -> Iterator[LineWriter]:
    writer = LineWriter(path, capacity=capacity)
    try:
        yield writer
    finally:
        writer.close()


def _read(path: Path) -> list[Any]:
    """The numbers of its lines, and how many were dropped before."""
    lines = map(json.loads, path.read_text().splitlines())
    return [f"dropped {line['lines']}" if "event" in line else line["n"] for line in lines]


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


@pytest.mark.parametrize("problem", ["full disk", "folder gone"])
def test_lines_that_cannot_be_written_are_counted_and_told_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, problem: str
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "log"
    if problem == "full disk":
        path.symlink_to("/dev/full")  # every write to which fails as on a full disk
    with caplog.at_level(logging.WARNING), _writing(path) as writer:
        if problem == "folder gone":
            path.unlink()
            folder.rmdir()
        writer.write({"n": 1})
        wait_for(lambda: "cannot be written" in caplog.text)
        writer.write({"n": 2})
        wait_for(lambda: writer._failed >= 2)
        if problem == "full disk":
            path.unlink()
        else:
            folder.mkdir()
        writer.write({"n": 3})
    first, last = _read(path)
    assert (first in ("dropped 2", "dropped 3"), last) == (True, 3)  # a line that told of it may be lost too
    assert caplog.text.count("cannot be written") == 1


def test_a_file_that_takes_nothing_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = SimpleQueue[None]()

    class Slow:
        """Standard output, as a program that reads it slowly."""

        def write(self, text: str) -> None:
            gate.get()
            written.append(text)

        def flush(self) -> None:
            """At once."""

    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", Slow())
    with _writing(STDOUT, capacity=10) as writer:
        for number in range(30):
            writer.write({"n": number})  # would never end, if it waited
        assert 30 - 10 - 1 <= (dropped := writer.dropped) <= 30 - 10
        for _ in range(30):
            gate.put(None)
    told = [json.loads(text) for text in written]
    assert [line["n"] for line in told[:-1]] == [*range(30 - dropped)]
    assert told[-1]["lines"] == dropped
