"""A small gallery of drawn images to decide about, and one with file names that attack whoever prints them."""

import os
import shutil
from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from tests.conftest import CLASSES, draw_folder, draw_image

HOSTILE = (
    *(b"=cmd|' C calc'!A1.jpg", b'a, "quoted" one.jpg', b"two\nlines.jpg", b"back\rreturn.jpg"),
    *(b" blank ends .jpg", b"-1+1.jpg", "ünï 漢字.jpg".encode()),
)
NAMES = [*CLASSES]
WRONG = {f"{NAMES[(n + 1 + n // 3 % 2) % 3]}/wrong{n}.png": NAMES[n % 3] for n in range(12)}
"""Images in the folder of another class, and what they show."""
UNDECODABLE = b"caf\xe9.jpg"
FORMULA = "=SUM(1;2)"


def build(folder: Path, *, model: Path, name: str = "shop", labels: Path | None = None) -> Path:
    build_gallery(model_path=model, sources=[folder / "images"], out=folder / name, labels_file=labels)
    return folder / name


def write_hostile(folder: Path) -> Path:
    """Class folders of drawn images; one has hostile file names, and one a hostile name itself."""
    images = draw_folder(folder / "images", per_class=2)
    (images / FORMULA).mkdir()
    draw_image((90, 90, 90), seed=400).save(images / FORMULA / "1.png")
    for number, name in enumerate((*HOSTILE, UNDECODABLE)):
        place = os.path.join(os.fsencode(images), b"red", name)
        draw_image((210, 50, 40), seed=500 + number).save(os.fsdecode(place), format="JPEG")
    return images


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Fifteen images of three classes and two byte copies of one, never changed."""
    folder = tmp_path_factory.mktemp("shop")
    images = draw_folder(folder / "images")
    for copy in ("copy.jpg", "again.jpg"):
        (images / "red" / copy).write_bytes((images / "red" / "0.jpg").read_bytes())
    return Gallery.open(build(folder, model=tiny_model))


@pytest.fixture(scope="package")
def hostile(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile(folder)
    return Gallery.open(build(folder, model=tiny_model))


@pytest.fixture(scope="package")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of three classes of twenty, and of twelve images in a wrong folder."""
    folder = tmp_path_factory.mktemp("wrong")
    images = draw_folder(folder / "images", per_class=20)
    for number, (path, shown) in enumerate(WRONG.items()):
        draw_image(CLASSES[shown], seed=700 + number).save(images / path)
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "gallery")
    return folder / "gallery"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "gallery"))


def ids_by_path(gallery: Gallery) -> dict[str, int]:
    return {image.path: image.id for image in gallery.sample(gallery.count, seed=0)}
