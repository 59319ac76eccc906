"""`retrieval duplicates` as people and programs call it, on galleries with and without near-duplicates left out."""

import csv
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from retrieval_app.commands.cli import main
from retrieval_app.review.bulk import set_labels
from tests.conftest import draw_folder
from tests.index.galleries import build

NOT_UTF8 = os.fsdecode(b"=caf\xe9.jpg")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen drawn images; one of them again under another label, twice, and one saved again."""
    folder = draw_folder(tmp_path_factory.mktemp("photos") / "photos")
    shutil.copy(folder / "blue" / "0.jpg", folder / "green" / "copy.jpg")
    shutil.copy(folder / "blue" / "0.jpg", folder / NOT_UTF8)
    with Image.open(folder / "red" / "1.png") as image:
        image.save(folder / "red" / "again.jpg", quality=90)
    return folder


@pytest.fixture(scope="module")
def gallery(photos: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, none left out; not to be written to."""
    out = tmp_path_factory.mktemp("gallery") / "gallery"
    build(photos, out, tiny_model)
    return out


def read_table(folder: Path) -> list[dict[str, str]]:
    with (folder / "duplicates.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def members(rows: list[dict[str, str]], *columns: str) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in columns) for row in rows]


def test_groups_are_summarised(gallery: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found"
    assert main(["duplicates", str(gallery), "--min-similarity", "0.99"]) == 0
    assert "red/again.jpg" in capsys.readouterr().out
    assert main(["duplicates", str(gallery), "--out", str(out), "--min-similarity", "0.99"]) == 0
    assert "18 images; 2 groups with 3 near-duplicates" in capsys.readouterr().out
    rows = read_table(out)
    assert members(rows, "group", "role", "path", "label", "same_bytes", "hash_distance") == [
        ("1", "first", "blue/0.jpg", "blue", "", ""),
        ("1", "duplicate", f"'{NOT_UTF8}", "", "yes", "0"),
        ("1", "duplicate", "green/copy.jpg", "green", "yes", "0"),
        ("2", "first", "red/1.png", "red", "", ""),
        ("2", "duplicate", "red/again.jpg", "red", "no", rows[4]["hash_distance"]),
    ]
    assert [float(row["similarity"]) for row in rows if row["similarity"]] == pytest.approx([1, 1, 1], abs=0.01)


def test_dropped_images_do_not_count(
    photos: Path, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    for name in ("more.jpg", "most.jpg"):
        shutil.copy(photos / "red" / "again.jpg", tmp_path / "photos" / "red" / name)
    build(tmp_path / "photos", tmp_path / "gallery", tiny_model)
    set_labels(tmp_path / "gallery", None, where="path IN ('red/1.png', 'blue/0.jpg')", drop=True)
    assert main(["duplicates", str(tmp_path / "gallery"), "--out", str(tmp_path / "found")]) == 0
    assert "18 images; 2 groups with 3 near-duplicates" in capsys.readouterr().out
    assert members(read_table(tmp_path / "found"), "role", "path", "similarity") == [
        ("first", "red/again.jpg", ""),
        ("duplicate", "red/more.jpg", ""),
        ("duplicate", "red/most.jpg", ""),
        ("first", f"'{NOT_UTF8}", ""),
        ("duplicate", "green/copy.jpg", ""),  # its labels differed before
    ]


def test_nothing_is_written_among_images(gallery: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (photos / "found", gallery / "found"):
        assert main(["duplicates", str(gallery), "--out", str(folder)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: --out {folder} lies inside")
        assert error.count("\n") == 1
        assert not folder.exists()
