"""A build that could not even begin leaves nothing behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from index.errors import GalleryError, InputError
from index.public import build
from index.versions.gallery_lock import lock_gallery
from tests.conftest import draw_folder


def test_a_folder_that_was_there_stays(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "gallery").mkdir()
    with pytest.raises(InputError, match="no usable image"):
        build(tiny_model, tmp_path / "photos", tmp_path / "gallery")
    assert (tmp_path / "gallery").is_dir()
    draw_folder(tmp_path / "photos" / "more")
    assert build(tiny_model, tmp_path / "photos", tmp_path / "gallery").indexed == 15


def test_who_waits_for_the_lock_of_a_folder_that_goes_is_told(tmp_path: Path) -> None:
    gallery = tmp_path / "gallery"
    gallery.mkdir()
    told: list[Exception] = []

    def wait() -> None:
        try:
            with lock_gallery(gallery, wait_s=10):
                pass
        except GalleryError as error:
            told.append(error)

    with lock_gallery(gallery):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        (gallery / ".lock").unlink()
        gallery.rmdir()
    waiting.join()
    assert "run this again" in str(told[0])
