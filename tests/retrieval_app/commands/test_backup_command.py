"""`retrieval backup` and `retrieval restore` as people and programs call them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from index.labels.decisions import LabelDecision
from retrieval_app.commands.cli import main
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_folder
from tests.index.galleries import build
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


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_a_backup_is_told_and_restored_in_words(
    gallery: Path, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shop.zip"
    assert main(["backup", str(gallery), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"{out}: 2 decisions on labels, 0 on duplicates, 1 images sent" in said.out
    assert said.err == ""
    build(tmp_path / "photos", tmp_path / "new", tiny_model)
    assert main(["restore", str(out), "--gallery", str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    assert "2 decisions restored, 0 were there, 0 are older" in said
    assert "1 images restored, 0 were there, 1 new in the index" in said
    assert "1 decisions are kept, but are about images that are not there:" in said
    assert "drop the label of /gone" in said
    assert "\x1b" not in said


def test_a_backup_is_told_and_restored_in_json(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shop.zip"
    assert main(["backup", str(gallery), "--out", str(out), "--json"]) == 0
    told = document(capsys)
    assert told["bytes"] == out.stat().st_size
    assert (told["label_decisions"], told["images"], told["notes"]) == (2, 1, [])
    assert main(["restore", str(out), "--gallery", str(gallery), "--json"]) == 0
    told = document(capsys)
    assert told["decisions"] == {"restored": 0, "present": 2, "older": 0}
    assert [lost["sha256"] for lost in told["not_attached"]] == ["f" * 64]


def test_photos_that_were_taken_out_are_told_and_taken_out_again(
    gallery: Path, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "remove", str(gallery), "red/0.jpg"]) == 0
    capsys.readouterr()
    assert main(["backup", str(gallery), "--out", str(tmp_path / "shop.zip")]) == 0
    assert "1 images sent, 1 other images taken out, " in capsys.readouterr().out
    build(tmp_path / "photos", tmp_path / "new", tiny_model)
    assert main(["restore", str(tmp_path / "shop.zip"), "--gallery", str(tmp_path / "new")]) == 0
    assert (
        "1 other images had been taken out before the backup, and were taken out again" in capsys.readouterr().out
    )
    assert main(["restore", str(tmp_path / "shop.zip"), "--gallery", str(tmp_path / "new"), "--json"]) == 0
    assert document(capsys)["removals"] == {"taken_out": 0, "out": 1, "added_again": 0, "last": 0}


def test_what_is_left_out_of_a_backup_makes_it_exit_with_1(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (gallery / "people" / "added" / "gone.jpg").symlink_to("nowhere")
    assert main(["backup", str(gallery), "--out", str(tmp_path / "shop.zip")]) == 1
    assert "note: left out: gone.jpg" in capsys.readouterr().out
    assert (tmp_path / "shop.zip").exists()


def test_errors_name_the_file_and_leave_nothing(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(os.listdir(tmp_path))
    assert main(["backup", str(gallery), "--out", str(tmp_path / "no" / "shop.zip")]) == 1
    assert "its folder does not exist" in capsys.readouterr().err
    assert main(["backup", str(tmp_path / "photos"), "--out", str(tmp_path / "shop.zip")]) == 1
    assert "no gallery" in capsys.readouterr().err
    assert main(["restore", str(gallery / "CURRENT"), "--gallery", str(gallery)]) == 1
    assert "CURRENT: no backup" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before


def test_a_full_disk_leaves_the_backup_before(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    out = tmp_path / "shop.zip"
    out.write_bytes(b"the one before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        assert main(["backup", str(gallery), "--out", str(out), "--overwrite"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written" in capsys.readouterr().err
    assert out.read_bytes() == b"the one before"
    assert sorted(os.listdir(tmp_path)) == ["photos", "shop", "shop.zip"]
