import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from index.arrays import UNLABELLED
from index.errors import GalleryError, InputError
from index.gallery.gallery import Gallery
from index.sources.reading import read_place
from index.versions.gallery_parts import describe_no_gallery
from index.versions.manifest import FORMAT_VERSION
from index.versions.versions import find_version, set_current
from index.writing.build import build_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build_ann
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
