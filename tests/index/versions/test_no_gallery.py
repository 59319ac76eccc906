"""What is said of a path that is no gallery."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.public import build
from index.versions.no_gallery import describe_no_gallery
from tests.conftest import draw_folder


def test_what_is_not_there_can_be_made(tmp_path: Path) -> None:
    assert (
        describe_no_gallery(tmp_path / "none") == "no such gallery; make one with `retrieval index build SOURCE`"
    )


def test_a_file_is_no_gallery(tmp_path: Path) -> None:
    (tmp_path / "query.jpg").write_bytes(b"")
    assert "a file, and no gallery" in describe_no_gallery(tmp_path / "query.jpg")


def test_an_empty_folder_is_called_so(tmp_path: Path) -> None:
    assert "an empty folder" in describe_no_gallery(tmp_path)


def test_any_other_folder_is_told_what_a_gallery_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("milk")
    assert "is the folder that `retrieval index build --out` made" in describe_no_gallery(tmp_path)


def test_the_root_of_a_disk_has_nothing_beside_it() -> None:
    assert "there is no gallery" in describe_no_gallery(Path("/"))


@pytest.mark.parametrize("ending", ["", "/"])
def test_images_are_told_with_the_gallery_beside_them(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    build(tiny_model, draw_folder(tmp_path / "photos"), tmp_path / "photos-gallery")
    monkeypatch.chdir(tmp_path)
    assert describe_no_gallery(Path("photos" + ending)).endswith("theirs is beside them: photos-gallery")
