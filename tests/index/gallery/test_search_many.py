import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index.arrays import NO_ID
from index.catalog.reader import Catalog
from index.errors import GalleryDamagedError, ImageError, InputError
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit
from index.vectors.stored_rows import StoredRows
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build
from tests.index.vector_sources import search_by_id
from tests.models import EMBEDDING_DIM


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Fifteen images of three classes, and forty copies of one image."""
    folder = tmp_path_factory.mktemp("many")
    images = draw_folder(folder / "images")
    twin = draw_image((120, 120, 120), seed=7)
    for number in range(40):
        twin.save(images / f"twin{number:02d}.png")
    build(images, folder / "gallery", tiny_model)
    return Gallery.open(folder / "gallery")


def queries(gallery: Gallery) -> np.ndarray:
    """Every member, the twins among them, and forty vectors of no image."""
    members = np.stack([gallery.vector(int(key)) for key in gallery.ids])
    others = np.random.default_rng(3).normal(size=(40, EMBEDDING_DIM)).astype(np.float32)
    return np.concatenate([members, others / np.linalg.norm(others, axis=1, keepdims=True)])


@pytest.mark.parametrize(
    ("k", "min_score", "excluding"),
    [(1, None, False), (39, None, True), (500, None, True), (12, 0.9, False), (None, 0.9, True), (None, -1, False)],
)
def test_a_block_is_its_rows(gallery: Gallery, k: int | None, min_score: float | None, excluding: bool) -> None:
    vectors, ids = queries(gallery), np.full(95, NO_ID, dtype=np.int64)
    if excluding:
        ids[: gallery.count : 2] = gallery.ids[::2]
    one_by_one = [
        gallery.search(vector, k=k, min_score=min_score, exclude_id=None if own == NO_ID else int(own))
        for vector, own in zip(vectors, ids, strict=True)
    ]
    found = gallery.search_many(vectors, k=k, min_score=min_score, exclude_ids=ids if excluding else None)
    assert found == one_by_one
    scores, expected = search_by_id(
        vectors, vectors[: gallery.count], k=k or gallery.count, ids=gallery.ids, exclude=ids
    )
    wanted = (expected != NO_ID) & (scores >= (-np.inf if min_score is None else min_score))
    for row, hits in enumerate(found):
        assert [hit.id for hit in hits] == expected[row, wanted[row]].tolist()
        assert [hit.score for hit in hits] == scores[row, wanted[row]].tolist()


def scan_with_noise(self: StoredRows, queries: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """A scan whose scores have rounding errors that are as large as they may be, and whose order follows them."""
    wanted = options.pop("k")
    scores, positions = SCAN(self, queries, k=len(self), **options)
    scores += np.random.default_rng(wanted).uniform(-4e-6, 4e-6, scores.shape).astype(np.float32)
    order = np.argsort(-scores, axis=1)[:, :wanted]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)


SCAN = StoredRows.scan


@pytest.mark.parametrize("excluding", [False, True])
def test_rounding_changes_no_result(gallery: Gallery, monkeypatch: pytest.MonkeyPatch, excluding: bool) -> None:
    vectors = queries(gallery)[: gallery.count]
    exclude_ids = gallery.ids if excluding else None
    every = gallery.search_many(vectors, k=gallery.count, exclude_ids=exclude_ids)
    monkeypatch.setattr(StoredRows, "scan", scan_with_noise)
    for k in (1, 14, 15, 38):
        assert gallery.search_many(vectors, k=k, exclude_ids=exclude_ids) == [hits[:k] for hits in every]


def test_a_block_of_the_wrong_kind_is_refused(gallery: Gallery) -> None:
    vectors = queries(gallery)
    for k, min_score in ((0, None), (None, None), (0, 0.5)):
        with pytest.raises(InputError, match="k must be at least 1"):
            gallery.search_many(vectors, k=k, min_score=min_score)
    with pytest.raises(InputError, match="min_score must be a finite number"):
        gallery.search_many(vectors, k=1, min_score=float("nan"))
    for wrong in (vectors[:, 1:], vectors[0], vectors[None]):
        with pytest.raises(InputError, match=f"{EMBEDDING_DIM} finite numbers"):
            gallery.search_many(wrong, k=1)
    vectors[-1, 0] = np.inf
    with pytest.raises(InputError, match="finite"):
        gallery.search_many(vectors, k=1)


def test_a_member_without_a_row_is_damage(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalog, "find", lambda *_: {})
    gallery = Gallery.open(gallery.path)
    with pytest.raises(GalleryDamagedError, match="images without a row"):
        gallery.search_many(queries(gallery)[:2], k=1)


@pytest.fixture(scope="module")
def photo(gallery: Gallery) -> Path:
    return gallery.place(3).file


def best(hits: list[Hit]) -> tuple[int, float]:
    return hits[0].id, round(hits[0].score, 4)


def test_a_path_text_bytes_an_image_an_array_and_a_vector_ask_alike(gallery: Gallery, photo: Path) -> None:
    image = Image.open(photo)
    queries = [photo, str(photo), photo.read_bytes(), image, np.asarray(image.convert("RGB")), gallery.vector(3)]
    found = [gallery.search(query, k=3) for query in queries]
    assert {best(hits) for hits in found} == {(3, 1.0)}
    assert {tuple(hit.id for hit in hits) for hits in found} == {tuple(hit.id for hit in found[0])}


def test_an_image_of_any_mode_asks(gallery: Gallery, photo: Path) -> None:
    for mode in ("RGBA", "P", "CMYK"):
        hit_id, score = best(gallery.search(Image.open(photo).convert(mode), k=1))
        assert hit_id == 3
        assert score > 0.98
    for mode in ("L", "I;16"):
        grey, file = Image.open(photo).convert("L").convert(mode), io.BytesIO()
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
        (np.ones(EMBEDDING_DIM + 1, np.float32), "a query must be 16 finite numbers, got 17 of float32"),
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
    for other in (b"no image", Image.new("RGB", (0, 5)), Image.new("F", (5, 5)), "missing.jpg"):
        with pytest.raises(ImageError):
            gallery.search(other)


def test_a_filter_and_an_excluded_member_of_the_wrong_type_are_named(gallery: Gallery) -> None:
    with pytest.raises(InputError, match="colour"):
        gallery.search(gallery.vector(3), where="colour = 'blue'")
    with pytest.raises(InputError, match="where: expected a filter as text, got 3"):
        gallery.search(gallery.vector(3), where=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="exclude_id must be the id of a member, got 'x'"):
        gallery.search(gallery.vector(3), exclude_id="x")  # type: ignore[arg-type]
