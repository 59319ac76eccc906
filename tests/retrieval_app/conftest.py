"""A small real gallery to serve: drawn images, a hostile file name, one file that vanished after the build."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from retrieval_app.gallery_answers import GalleryAnswers
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.serving_config import ServingConfig
from tests.conftest import draw_folder, draw_image

HOSTILE_NAMES = ("<img src=x onerror=alert(1)>.jpg", "${alert(1)}.jpg", "{{alert}} & 'co'.jpg")
VANISHED = "red/vanished.jpg"


def build_small_gallery(folder: Path, *, model: Path) -> Path:
    """The gallery folder; its images lie in `folder/images`."""
    images = draw_folder(folder / "images")
    for number, name in enumerate((*HOSTILE_NAMES, VANISHED.partition("/")[2])):
        draw_image((220, 40, 40), seed=900 + number).save(images / "red" / name, format="JPEG")
    build_gallery(model_path=model, sources=[images], out=folder / "small")
    (images / VANISHED).unlink()
    return folder / "small"


@pytest.fixture(scope="session")
def small_gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return build_small_gallery(tmp_path_factory.mktemp("served"), model=tiny_model)


@pytest.fixture(scope="session")
def gallery(small_gallery: Path) -> Gallery:
    return Gallery.open(small_gallery)


@pytest.fixture(scope="session")
def ids(gallery: Gallery) -> dict[str, int]:
    return {image.path: image.id for image in gallery.sample(gallery.count, seed=0)}


@pytest.fixture(scope="module")
def answers(small_gallery: Path) -> Iterator[GalleryAnswers]:
    engine = Engine(small_gallery, config=ServingConfig(threads=1))
    yield GalleryAnswers(engine)
    engine.close()
