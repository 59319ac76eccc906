import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from index.versions.annotations import log_file
from retrieval_app.review import activity_log, database
from retrieval_app.review.activity_log import EXPORT, REFUSED, SIGN_IN, ActivityLog, Client, read_log
from tests.conftest import room_for

WRITE_ENDLESSLY = """
import sys, itertools
from pathlib import Path
from typing import Any
from retrieval_app.review import activity_log
activity_log.MOST_WAIT_S = 60.0  # or a busy disk lets it print numbers that are not there yet
log = activity_log.ActivityLog(Path(sys.argv[1]))
for number in itertools.count():
    log.record("update", activity_log.Client(sys.argv[2], "here"), number=number)
    print(number, flush=True)
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ActivityLog]:
    log = ActivityLog(tmp_path)
    yield log
    log.close()


def _record(log: ActivityLog, what: str = "update", *, who: str = "anna", **details: Any) -> None:
    log.record(what, Client(who, "192.0.2.7", "r1"), **details)


def test_a_line_is_on_the_disk_when_it_was_recorded(log: ActivityLog, tmp_path: Path) -> None:
    _record(log, "remove", images=[3])
    (line,) = read_log(tmp_path)
    assert datetime.fromisoformat(line.pop("at")).tzinfo is not None
    assert line == {"who": "anna", "from": "192.0.2.7", "what": "remove", "request": "r1", "images": [3]}
    assert log_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_lines_of_many_threads_are_all_there_in_the_order_of_time(log: ActivityLog, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _record(log, number=number), range(200)))
    lines = read_log(tmp_path)
    assert {line["number"] for line in lines} == set(range(200))
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)


@pytest.mark.parametrize("what", [EXPORT, REFUSED, SIGN_IN])
def test_the_oldest_lines_go_and_neither_exports_nor_visits_push_changes_out(
    log: ActivityLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(activity_log, "MOST_BYTES", 1000)
    monkeypatch.setattr(activity_log, "TRIM_EVERY", 1)
    _record(log, "remove", images=[1])
    for number in range(60):
        _record(log, what, number=number)
    lines = read_log(tmp_path)
    assert [line["what"] for line in lines if line["what"] != what] == ["remove"]
    kept = [line["number"] for line in lines if line["what"] == what]
    assert 5 < len(kept) < 12
    assert kept == list(range(60 - len(kept), 60))


def test_a_full_disk_fails_no_request_and_loses_no_line(
    log: ActivityLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _record(log, number=0)
    with room_for(log_file(tmp_path).stat().st_size):
        begun = time.monotonic()
        for number in range(1, 200):
            _record(log, number=number, text="x" * 300)
        assert time.monotonic() - begun < 10
    _record(log, number=200)
    assert [line["number"] for line in read_log(tmp_path)] == list(range(201))
    assert "lines of the activity log wait" in caplog.messages[0]
    assert "xxx" not in caplog.text


def test_beyond_the_room_of_a_series_the_oldest_lines_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_log, "MOST_WAITING", 10)
    log = ActivityLog(tmp_path)
    (tmp_path / "annotations").write_text("in the way")
    for number in range(4):
        _record(log, "remove", number=number)
    for number in range(50):
        _record(log, REFUSED, number=number)
    (tmp_path / "annotations").unlink()
    _record(log, "remove", number=4)
    log.close()
    lines = read_log(tmp_path)
    assert [line["number"] for line in lines if line["what"] == "remove"] == [0, 1, 2, 3, 4]
    assert [line["number"] for line in lines if line["what"] == REFUSED] == list(range(40, 50))


def test_lines_that_wait_are_written_at_the_end_whatever_kept_them(
    log: ActivityLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(activity_log, "_INSERT", None)
        _record(log, number=0)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert read_log(tmp_path) == []
    log.close()
    assert [line["number"] for line in read_log(tmp_path)] == [0]


def test_many_lines_wait_for_one_write_where_another_program_holds_the_file(
    log: ActivityLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _record(log, number=0)
    log.close()
    monkeypatch.setattr(database, "_WAIT_SECONDS", 0.2)
    log = ActivityLog(tmp_path)
    with closing(sqlite3.connect(log_file(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for number in range(1, 30):
            _record(log, wait=False, number=number)
        log.close()
    assert len(caplog.messages) <= 3  # of the write under way, the one after it, and that of the end
    log.close()
    assert [line["number"] for line in read_log(tmp_path)] == list(range(30))


def test_a_line_after_the_end_is_written(log: ActivityLog, tmp_path: Path) -> None:
    log.close()
    _record(log, number=0)
    assert [line["number"] for line in read_log(tmp_path)] == [0]


@pytest.mark.parametrize(
    "damage", ["'{'", "'[1]'", "'{\"at\": 1}'", "7", "CAST(x'ff' AS TEXT)", "replace(line, '20', 'x')"]
)
def test_a_damaged_line_is_left_out(log: ActivityLog, tmp_path: Path, damage: str) -> None:
    for number in range(3):
        _record(log, number=number)
    with closing(sqlite3.connect(log_file(tmp_path), isolation_level=None)) as connection:
        connection.execute(f"UPDATE lines SET line = {damage} WHERE number = 2")
    assert [line["number"] for line in read_log(tmp_path)] == [0, 2]


@pytest.mark.slow
def test_what_a_killed_process_had_recorded_is_there_and_others_go_on(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE_ENDLESSLY, str(tmp_path), name], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        for _ in range(30):
            writer.stdout.readline()  # type: ignore[union-attr]
    for writer in writers:
        writer.kill()
    told = {
        name: 30 + len(writer.communicate()[0].split()) for name, writer in zip(("one", "two"), writers, strict=True)
    }
    log = ActivityLog(tmp_path)
    _record(log)
    log.close()
    lines = read_log(tmp_path)
    assert [line["who"] for line in lines if line["who"] == "anna"] == ["anna"]
    for name, count in told.items():
        assert {line["number"] for line in lines if line["who"] == name} >= set(range(count))
