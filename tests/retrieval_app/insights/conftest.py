"""Real galleries of drawn images: one with labels of which some are wrong, and copies; others for the edges."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from tests.conftest import CLASSES, draw_folder, draw_image

MISLABELLED = {"red/wrong_0.png": "blue", "green/wrong_1.png": "red"}  # path -> what it shows
SAME_FILE, SAVED_AGAIN = "blue/same.png", "green/again.jpg"


def draw_labelled(folder: Path) -> Path:
    """Three classes of a dozen, two images in the wrong folder, a copy of `blue/1.png`, `green/1.png` saved again."""
    draw_folder(folder, per_class=12)
    for number, (path, shown) in enumerate(MISLABELLED.items()):
        draw_image(CLASSES[shown], seed=700 + number).save(folder / path)
    shutil.copyfile(folder / "blue/1.png", folder / SAME_FILE)
    draw_image(CLASSES["green"], seed=101).save(folder / SAVED_AGAIN, quality=95)
    return folder


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    folder = tmp_path_factory.mktemp("labelled")
    build_gallery(model_path=tiny_model, sources=[draw_labelled(folder / "images")], out=folder / "gallery")
    return Gallery.open(folder / "gallery")


@pytest.fixture(scope="session")
def ids(labelled: Gallery) -> dict[str, int]:
    return {image.path: image.id for image in labelled.sample(labelled.count, seed=0)}


@pytest.fixture
def build(tmp_path: Path, tiny_model: Path) -> Callable[[dict[str, str]], Gallery]:
    """Builds a gallery of images given as path -> what they show."""

    def build_images(images: dict[str, str]) -> Gallery:
        for number, (path, shown) in enumerate(images.items()):
            target = tmp_path / "images" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            draw_image(CLASSES[shown], seed=number).save(target)
        build_gallery(model_path=tiny_model, sources=[tmp_path / "images"], out=tmp_path / "gallery")
        return Gallery.open(tmp_path / "gallery")

    return build_images


UNUSUAL = {
    "one class beside loose images": {f"red/{i}.png": "red" for i in range(3)} | {f"{i}.png": "red" for i in range(3)},
    "no labels": {f"{i}.png": "red" for i in range(4)},
    "classes of one image": {f"{i}/x.png": "green" for i in range(6)},
    "one image": {"a/1.png": "red"},
}


@pytest.fixture(params=UNUSUAL)
def unusual(request: pytest.FixtureRequest, build: Callable[[dict[str, str]], Gallery]) -> Gallery:
    return build(UNUSUAL[request.param])
