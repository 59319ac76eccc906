import io
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index.arrays import NO_ID, UNLABELLED
from index.catalog.reader import Catalog
from index.errors import GalleryDamagedError, GalleryError, ImageError, InputError
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit, SearchOptions, answer
from index.repair.repair import repair_gallery
from index.sources.reading import read_place
from index.vectors.kinds import KINDS
from index.vectors.stored_rows import StoredRows
from index.versions.gallery_parts import describe_no_gallery
from index.versions.manifest import _INDEX_TYPES, FORMAT_VERSION
from index.versions.versions import find_version, set_current
from index.writing.build import build_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build_ann
from tests.index.vector_sources import search_by_id
from tests.models import EMBEDDING_DIM


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of 15 labelled images, 40 copies of one unlabelled image, and a broken file."""
    folder = tmp_path_factory.mktemp("gallery")
    images = draw_folder(folder / "images")
    twin = draw_image((120, 120, 120), seed=7)
    for number in range(40):
        twin.save(images / f"twin{number:02d}.png")
    (images / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "gallery")
    return folder / "gallery"


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "copy")
    return tmp_path / "copy"


def version(gallery: Path) -> Path:
    return find_version(gallery).folder


def test_unknown_ids_are_refused(built: Path) -> None:
    gallery = Gallery.open(built)
    for unknown in (0, -1, 10**6, 10**20):
        for ask in (gallery.image, gallery.vector, gallery.place):
            with pytest.raises(InputError, match=f"no image {unknown} in gallery"):
                ask(unknown)
            with pytest.raises(InputError, match=r"must be a whole number, got 1\.5"):
                ask(1.5)  # type: ignore[arg-type]


def test_a_source_image_that_is_gone_is_named(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images", per_class=2)
    build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    image = gallery.sample(1, seed=0)[0]
    (images / image.path).unlink()
    with pytest.raises(InputError, match=f"{image.path}: the image is no longer .*images"):
        read_place(gallery.place(image.id))


def test_a_sample_has_different_members_and_repeats_with_its_seed(built: Path) -> None:
    gallery = Gallery.open(built)
    first = gallery.sample(20, seed=5)
    assert len({image.id for image in first}) == 20
    assert gallery.sample(20, seed=5) == first
    assert gallery.sample(20, seed=6) != first
    assert len(gallery.sample(10**6, seed=0)) == 55
    assert gallery.image(first[0].id) == first[0]


def test_labelled_vectors_pair_each_vector_with_its_label(built: Path) -> None:
    gallery = Gallery.open(built)
    vectors, labels, ids, names = gallery.labelled_vectors()
    assert names == ["blue", "green", "red"]
    assert vectors.shape == (55, EMBEDDING_DIM)
    assert (labels == UNLABELLED).sum() == 40
    for position in range(0, 55, 6):
        image = gallery.image(int(ids[position]))
        assert image.label == (None if labels[position] == UNLABELLED else names[labels[position]])
        assert np.array_equal(gallery.vector(image.id), vectors[position])


def test_a_missing_file_is_found_on_opening(built: Path, tmp_path: Path, tiny_model: Path) -> None:
    build_ann(built.parent / "images", tmp_path / "graph", tiny_model)
    for name in ("catalog.sqlite", "vectors/00000.npy", "index.faiss", "model.onnx", "manifest.json"):
        copy = shutil.copytree(tmp_path / "graph", tmp_path / name.replace("/", "-"))
        (version(copy) / name).unlink()
        with pytest.raises(GalleryError, match=f"{name}.*cannot be read"):
            Gallery.open(copy)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format_version": 3}, "format version 3, expected 1: a pre-release"),
        ({"picture": None}, "other keys: a pre-release or a newer program made it; build the gallery again"),
        ({"metric": "cosine"}, "metric must be 'inner-product'"),
        ({"preprocessing": {"resize": 40}}, "preprocess must have exactly the keys"),
        ({"embedding_dim": 15}, "expected 55 of width 15"),
        ({"counts": {"indexed": 54, "deleted": 0}}, "expected 54 of width 16"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(copied: Path, change: dict[str, object], problem: str) -> None:
    path = version(copied) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(GalleryError, match=r"manifest\.json: damaged: its SHA-256"):
        Gallery.open(copied)
    set_current(copied, version(copied))
    with pytest.raises(GalleryError, match=problem):
        Gallery.open(copied)


@pytest.mark.parametrize("output", ["semantic", "copy"])
@pytest.mark.parametrize("index", [{"type": "hnsw"}, {"type": "ivf"}, {"type": "pq", "held_out": 5}, {}])
def test_an_index_of_a_pre_release_is_refused_and_kept(copied: Path, index: dict[str, object], output: str) -> None:
    path = version(copied) / "manifest.json"
    manifest = json.loads(path.read_text())
    copy = {"embedding_dim": 8, "index": index, "deleted": 0, "threshold": 0.9}
    path.write_text(json.dumps(manifest | ({"index": index} if output == "semantic" else {"copy": copy})))
    set_current(copied, version(copied))
    for ask in (Gallery.open, repair_gallery):
        with pytest.raises(GalleryError, match=r"its index .*: a pre-release .*; build the gallery again into another"):
            ask(copied)


def test_the_manifest_knows_every_kind_of_index() -> None:
    assert set(_INDEX_TYPES) == set(KINDS)


def test_folders_that_are_no_gallery_are_told_apart(tmp_path: Path, copied: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for name, told in (("none", "no such gallery"), ("file", "a file, and no gallery"), ("photos", "an empty folder")):
        assert told in describe_no_gallery(tmp_path / name)
    (tmp_path / "photos-gallery").mkdir()
    (tmp_path / "photos-gallery" / "CURRENT").touch()
    assert "theirs is beside them: " in describe_no_gallery(tmp_path / "photos")
    (tmp_path / "plain" / "building").mkdir(parents=True)
    with pytest.raises(GalleryError, match="there is no gallery, nor one in the making"):
        Gallery.open(tmp_path / "plain")
    plan = {"format_version": FORMAT_VERSION, "base": None, "model_sha256": "0" * 64}
    (tmp_path / "plain" / "building" / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(GalleryError, match="has not finished"):
        Gallery.open(tmp_path / "plain")
    for content in ("../../etc", "000001/..", "", "one"):
        (copied / "CURRENT").write_text(content)
        with pytest.raises(GalleryError, match="CURRENT is damaged"):
            Gallery.open(copied)


def test_a_pickle_in_place_of_vectors_is_never_loaded(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = np.array([{"a": 1}], dtype=object)
    np.save(version(copied) / "vectors" / "00000.npy", trap, allow_pickle=True)
    monkeypatch.setattr("index.gallery.gallery.check_file", lambda *args, **kwargs: None)
    with pytest.raises(GalleryError, match="damaged or missing"):
        Gallery.open(copied)


@pytest.fixture(scope="module")
def gallery(built: Path) -> Gallery:
    return Gallery.open(built)


def queries(gallery: Gallery) -> np.ndarray:
    """Every member, the twins among them, and forty vectors of no image."""
    members = np.stack([gallery.vector(int(key)) for key in gallery.ids])
    others = np.random.default_rng(3).normal(size=(40, EMBEDDING_DIM)).astype(np.float32)
    return np.concatenate([members, others / np.linalg.norm(others, axis=1, keepdims=True)])


def search_excluding(gallery: Gallery, vectors: np.ndarray, own: np.ndarray, **options: Any) -> list[list[Hit]]:
    """Each row without the member of its id."""
    searches = [SearchOptions(**options, exclude_ids=frozenset((one,))) for one in own.tolist()]
    return answer(gallery, vectors, searches)


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
    options = {"k": k, "min_score": min_score}
    found = search_excluding(gallery, vectors, ids, **options) if excluding else gallery.search_many(vectors, **options)
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
    search = partial(search_excluding, own=gallery.ids) if excluding else Gallery.search_many
    every = search(gallery, vectors, k=gallery.count)
    monkeypatch.setattr(StoredRows, "scan", scan_with_noise)
    for k in (1, 14, 15, 38):
        assert search(gallery, vectors, k=k) == [hits[:k] for hits in every]


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
