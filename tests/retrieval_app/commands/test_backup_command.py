"""`retrieval backup` and `retrieval restore` as people and programs call them."""

import json
import os
from pathlib import Path

import pytest

from index.labels.decisions import LabelDecision
from retrieval_app.commands.cli import main
from retrieval_app.review.activity_log import ActivityLog, Client, bring_lines, read_log
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_folder, room_for
from tests.index.galleries import build
from tests.retrieval_app.conftest import build_small_gallery
from tests.retrieval_app.review.test_moved_galleries import send, served, state_of


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path) -> Path:
    """Six photos, an image that was sent, and two decisions, one of them about no image that there is."""
    gallery = tmp_path / "shop"
    build(draw_folder(tmp_path / "photos", per_class=2), gallery, tiny_model)
    with served(gallery) as jobs:
        send(jobs, 1, "boot")
    sha256, _, label, path = state_of(gallery)[1]
    store = ReviewStore.of_gallery(gallery)
    store.decide([LabelDecision(str(sha256), label, "keep", None, 1, path)])
    store.decide([LabelDecision("f" * 64, "x", "drop", None, 99, "/gone\x1b[2J.jpg")])
    store.close()
    return gallery


def test_round_trip(gallery: Path, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, new = tmp_path / "shop.zip", tmp_path / "new"
    assert main(["index", "remove", str(gallery), "red/0.jpg"]) == 0
    capsys.readouterr()
    assert main(["backup", str(gallery), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 decisions on labels, 0 on duplicates, 0 tags and splits, 0 saved searches, 1 images sent, 1" in said
    build(tmp_path / "photos", new, tiny_model)
    assert main(["restore", str(out), "--gallery", str(new)]) == 0
    said = capsys.readouterr().out
    assert "2 decisions restored, 0 were there, 0 are older" in said
    assert "drop: the label of /gone" in said
    assert "\x1b" not in said
    assert main(["restore", str(out), "--gallery", str(new), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["decisions"] == {"restored": 0, "present": 2, "older": 0}
    assert told["removed"] == 0
    assert "f" * 64 in [lost["sha256"] for lost in told["not_attached"]]


def test_a_full_disk_keeps_old_backups(gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shop.zip"
    out.write_bytes(b"the one before")
    with room_for(200):
        assert main(["backup", str(gallery), "--out", str(out), "--overwrite"]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert out.read_bytes() == b"the one before"
    assert sorted(os.listdir(tmp_path)) == ["photos", "shop", "shop.zip"]


@pytest.fixture
def logged(tmp_path: Path, tiny_model: Path) -> Path:
    logged = build_small_gallery(tmp_path, model=tiny_model)
    log = ActivityLog(logged)
    decisions = [{"image": 3, "decision": "change", "label": "ha\u001bt"}]
    log.record("decide-labels", Client("anna", "192.0.2.7", "r1"), step=1, decisions=decisions)
    log.record("export", Client("this machine", "127.0.0.1", "r2"), count=900, images=list(range(300)))
    log.close()
    return logged


def test_the_log_is_safe_to_print_filtered_and_json(logged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", str(logged)]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("decide-labels  step 1, image 3 change to ha\\x1bt")
    assert second.endswith("…")
    assert main(["log", str(logged), "--who", "anna", "--since", "2020-01-01", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["lines"]
    assert (line["who"], line["request"]) == ("anna", "r1")
    assert main(["log", str(logged), "--since", "2999-01-01"]) == 0
    assert capsys.readouterr().out == "nothing was logged\n"
    assert main(["log", str(logged), "--since", "yesterday"]) == 2


def test_a_restored_log_sends_no_escapes_to_a_terminal(logged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"at": "2026-11-01\u001b10:00:00", "who": "a", "from": "b", "what": "c\u001b[2J", "request": ""}
    bring_lines(logged, [line])
    assert main(["log", str(logged)]) == 0
    assert "\u001b" not in capsys.readouterr().out


def test_a_backup_says_what_is_left_out(logged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logged / "annotations" / "added").mkdir()
    (logged / "annotations" / "added" / "gone.jpg").symlink_to("nowhere")
    (logged / "annotations" / "log.sqlite").write_bytes(b"no log " * 1000)
    assert main(["backup", str(logged), "--out", str(tmp_path / "backup.zip")]) == 1
    assert "note: left out: gone.jpg" in (told := capsys.readouterr().out)
    assert "log.sqlite: cannot be read" in told


def test_backups_merge_logs_without_loss(logged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backup = tmp_path / "backup.zip"
    assert main(["backup", str(logged), "--out", str(backup)]) == 0
    assert "2 log lines" in capsys.readouterr().out
    (logged / "annotations" / "log.sqlite").unlink()
    log = ActivityLog(logged)
    log.record("update", Client("ben", "192.0.2.8"))
    log.close()
    for _ in range(2):
        assert main(["restore", str(backup), "--gallery", str(logged)]) == 0
        assert [line["who"] for line in read_log(logged)] == ["anna", "this machine", "ben"]
    assert "2 lines of the activity log" in capsys.readouterr().out
