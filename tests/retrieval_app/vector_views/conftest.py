"""A gallery with labels, loose images, odd names and one image that vanished after the build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from tests.conftest import draw_folder, draw_image

ODD_NAME = os.fsdecode(b"caf\xe9\ttab.png")
VANISHED = "red/vanished.png"


@pytest.fixture(scope="session")
def odd_gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Thirty-eight members, one without a label; not to be written to."""
    folder = tmp_path_factory.mktemp("views")
    images = draw_folder(folder / "images", per_class=12)
    draw_image((1, 2, 3), seed=0).save(images / ODD_NAME)
    draw_image((220, 40, 40), seed=77).save(images / VANISHED)
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "gallery")
    (images / VANISHED).unlink()
    return Gallery.open(folder / "gallery")
