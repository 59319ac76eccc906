from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from retrieval_app.commands.cli import main
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.log_files import read_log
from tests.retrieval_app.conftest import build_small_gallery


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path) -> Path:
    """A gallery of which two things were logged."""
    gallery = build_small_gallery(tmp_path, model=tiny_model)
    log = ActivityLog(gallery)
    decisions = [{"image": 3, "decision": "change", "label": "ha\u001bt"}]
    log.record("decide-labels", who="anna", address="192.0.2.7", request="r1", step=1, decisions=decisions)
    log.record("export", who="this machine", address="127.0.0.1", request="r2", count=900, images=list(range(300)))
    log.close()
    return gallery


def test_the_log_is_a_table_safe_to_print(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", str(gallery)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "when (UTC)"
    assert "anna" in first
    assert first.endswith("decide-labels  step 1, image 3 change to ha\\x1bt")
    assert second.endswith("…")
    assert "\x1b" not in first


def test_the_log_is_narrowed_and_told_as_json(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", str(gallery), "--who", "anna", "--since", "2020-01-01", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["lines"]
    assert (line["who"], line["request"]) == ("anna", "r1")
    assert main(["log", str(gallery), "--since", "2999-01-01"]) == 0
    assert capsys.readouterr().out == "nothing was logged\n"
    assert main(["log", str(gallery), "--since", "yesterday"]) == 2
    assert main(["log", str(gallery / "no")]) == 1


def test_a_backup_without_a_log_that_cannot_be_read_says_so(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (gallery / "people" / "log" / "changes-00000002.jsonl").mkdir()
    assert main(["backup", str(gallery), "--out", str(tmp_path / "backup.zip")]) == 1
    assert "left out: " in (told := capsys.readouterr().out)
    assert "the log cannot be read" in told


def test_a_backup_brings_the_log_along_and_loses_no_line_of_either(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup.zip"
    assert main(["backup", str(gallery), "--out", str(backup)]) == 0
    assert "2 log lines" in capsys.readouterr().out
    shutil.rmtree(gallery / "people" / "log")
    log = ActivityLog(gallery)
    log.record("update", who="ben", address="192.0.2.8")
    log.close()
    for _ in range(2):
        assert main(["restore", str(backup), "--gallery", str(gallery)]) == 0
        assert [line["who"] for line in read_log(gallery)] == ["anna", "this machine", "ben"]
    assert "2 lines of the log" in capsys.readouterr().out
