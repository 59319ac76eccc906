"""A build that could not even begin leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import InputError
from index.public import build
from tests.conftest import draw_folder


def test_no_folder_is_left_of_a_build_without_a_usable_image(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputError, match="no usable image"):
        build(tiny_model, tmp_path / "photos", tmp_path / "gallery")
    assert not (tmp_path / "gallery").exists()


def test_a_folder_that_was_there_stays(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "gallery").mkdir()
    with pytest.raises(InputError, match="no usable image"):
        build(tiny_model, tmp_path / "photos", tmp_path / "gallery")
    assert (tmp_path / "gallery").is_dir()
    draw_folder(tmp_path / "photos" / "more")
    assert build(tiny_model, tmp_path / "photos", tmp_path / "gallery").indexed == 15
