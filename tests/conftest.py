"""Fixtures that many tests share: a tiny real model, and folders of drawn images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.telemetry import switch_off_telemetry
from tests.models import write_tiny_model
from tests.shared import shared

__all__ = ["shared"]

CLASSES = {"blue": (40, 60, 220), "green": (30, 190, 60), "red": (220, 40, 40)}
IMAGES_PER_CLASS = 5


def pytest_configure(config: pytest.Config) -> None:
    """Report to nobody; let Pillow warn of damaged files, as the commands do; every other warning stays an error."""
    switch_off_telemetry()
    for module in ("Image", "ImageFile", "GifImagePlugin", "JpegImagePlugin", "PngImagePlugin", "TiffImagePlugin"):
        config.addinivalue_line("filterwarnings", f"ignore:::PIL.{module}")


def draw_image(colour: tuple[int, int, int], *, seed: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    """A colour with soft noise and a bright bar whose place depends on the seed."""
    random = np.random.default_rng(seed)
    pixels = random.normal(loc=colour, scale=12, size=(size[1], size[0], 3))
    start = int(random.integers(0, size[0] // 2))
    pixels[:, start : start + size[0] // 8] += 60
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_folder(folder: Path, *, per_class: int = IMAGES_PER_CLASS) -> Path:
    """Three classes of drawn images, in PNG and JPEG, one folder for each."""
    for number, (name, colour) in enumerate(CLASSES.items()):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            image = draw_image(colour, seed=100 * number + i)
            image.save(folder / name / (f"{i}.png" if i % 2 else f"{i}.jpg"))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file: 32 x 32 pixels in, 16 numbers out."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Fifteen drawn images of three classes."""
    return draw_folder(tmp_path / "images")
