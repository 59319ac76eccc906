"""What is said of a path that is no gallery."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.public import build
from index.versions.no_gallery import describe_no_gallery
from tests.conftest import draw_folder


def test_a_path_that_is_no_gallery_is_told_by_what_it_is(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "query.jpg").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    build(tiny_model, draw_folder(tmp_path / "photos", per_class=1), tmp_path / "photos-gallery")
    monkeypatch.chdir(tmp_path)
    for path, told in (
        ("none", "no such gallery; make one with `retrieval index build SOURCE`"),
        ("query.jpg", "a file, and no gallery"),
        ("empty", "an empty folder"),
        (".", "is the folder that `retrieval index build --out` made"),
        ("/", "there is no gallery"),
        ("photos/", "theirs is beside them: photos-gallery"),
    ):
        assert told in describe_no_gallery(Path(path))
