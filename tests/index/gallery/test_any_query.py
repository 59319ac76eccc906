from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.errors import ImageError, InputError
from index.gallery.gallery import Gallery
from index.gallery.hits import Hit
from index.public import build, open_gallery
from tests.conftest import draw_folder
from tests.models import EMBEDDING_DIM


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    folder = tmp_path_factory.mktemp("asked")
    build(tiny_model, draw_folder(folder / "images"), folder / "gallery")
    return open_gallery(folder / "gallery")


@pytest.fixture(scope="module")
def photo(gallery: Gallery) -> Path:
    image = gallery.image(3)
    return Path(image.source) / image.path


def best(hits: list[Hit]) -> tuple[int, float]:
    return hits[0].id, round(hits[0].score, 4)


def test_a_path_text_bytes_an_image_an_array_and_a_vector_ask_alike(gallery: Gallery, photo: Path) -> None:
    image = Image.open(photo)
    queries = [photo, str(photo), photo.read_bytes(), image, np.asarray(image.convert("RGB")), gallery.vector(3)]
    found = [gallery.search(query, k=3) for query in queries]
    assert {best(hits) for hits in found} == {(3, 1.0)}
    assert {tuple(hit.id for hit in hits) for hits in found} == {tuple(hit.id for hit in found[0])}


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK"])
def test_an_image_of_any_mode_asks(gallery: Gallery, photo: Path, mode: str) -> None:
    hit_id, score = best(gallery.search(Image.open(photo).convert(mode), k=1))
    assert hit_id == 3
    assert score > 0.98


@pytest.mark.parametrize("mode", ["L", "I;16"])
def test_grey_images_ask_as_their_files_do(gallery: Gallery, photo: Path, mode: str) -> None:
    grey = Image.open(photo).convert("L").convert(mode)
    file = io.BytesIO()
    grey.save(file, "PNG")
    assert gallery.search(grey, k=3) == gallery.search(file.getvalue(), k=3)


def test_an_image_is_turned_as_its_exif_says(gallery: Gallery, photo: Path) -> None:
    upright = Image.open(photo).convert("RGB")
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    turned.getexif()[0x0112] = 6  # turn by 270 degrees to see it upright
    assert best(gallery.search(turned, k=1)) == (3, 1.0)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (3, "query: expected a path, bytes, a PIL image or an array, got int; a member asks with"),
        (np.zeros(EMBEDDING_DIM, np.float32), "the vector is zero"),
        (np.full(EMBEDDING_DIM, np.inf, np.float32), f"a query must be {EMBEDDING_DIM} finite numbers"),
        (
            np.ones(EMBEDDING_DIM + 1, np.float32),
            f"a query must be {EMBEDDING_DIM} finite numbers, got 17 of float32",
        ),
        (np.ones((8, 8, 3), np.float32), r"expected an image as uint8 .* got float32 of shape \(8, 8, 3\)"),
    ],
)
def test_what_cannot_ask_is_refused_by_what_it_is(gallery: Gallery, query: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gallery.search(query)  # type: ignore[arg-type]


def test_a_closed_and_a_damaged_image_are_refused_as_the_file_would_be(gallery: Gallery, photo: Path) -> None:
    closed = Image.open(photo)
    closed.close()
    damaged = Image.open(io.BytesIO(photo.read_bytes()[:-100]))
    for query in (closed, damaged):
        with pytest.raises(ImageError, match="query: corrupt: "):
            gallery.search(query)


@pytest.mark.parametrize("query", [b"no image", Image.new("RGB", (0, 5)), Image.new("F", (5, 5)), "missing.jpg"])
def test_an_image_that_cannot_be_used_is_refused_with_a_reason(gallery: Gallery, query: object) -> None:
    with pytest.raises(ImageError):
        gallery.search(query)  # type: ignore[arg-type]


def test_a_filter_may_be_text(gallery: Gallery) -> None:
    hits = gallery.search(gallery.vector(3), k=50, where="label = 'blue'")
    assert {hit.label for hit in hits} == {"blue"}
    with pytest.raises(InputError, match="colour"):
        gallery.search(gallery.vector(3), where="colour = 'blue'")


def test_a_filter_and_an_excluded_member_of_the_wrong_type_are_named(gallery: Gallery) -> None:
    with pytest.raises(InputError, match="where: expected a filter as text, got 3"):
        gallery.search(gallery.vector(3), where=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="exclude_id must be the id of a member, got 'x'"):
        gallery.search(gallery.vector(3), exclude_id="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="exclude_id must be the id of a member, got 100000000000000000000"):
        gallery.search(gallery.vector(3), exclude_id=10**20)
