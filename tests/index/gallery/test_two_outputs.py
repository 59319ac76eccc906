"""A gallery whose model has several outputs: it keeps all vectors of every image, and is asked by two of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.commands.inspect_commands import info
from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.repair.repair import repair_gallery
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, remove_from_gallery, update_gallery
from index.writing.copying import tune_gallery
from retrieval_app.reports.duplicates_report import find_duplicate_groups
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build, few_for_an_index, flip, run
from tests.models import (
    COPY_DIM,
    EMBEDDING_DIM,
    UNTRAINED_DIM,
    read_pixels,
    write_three_output_model,
    write_two_output_model,
)

OUTPUTS = ("semantic", "copy")
WIDTHS = {"semantic": EMBEDDING_DIM, "copy": COPY_DIM, "untrained": UNTRAINED_DIM}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_three_output_model(tmp_path_factory.mktemp("model") / "three.onnx")


@pytest.fixture
def gallery(tmp_path: Path, outputs: Path) -> Path:
    draw_folder(tmp_path / "images", per_class=10)
    build(tmp_path / "images", tmp_path / "gallery", outputs)
    return tmp_path / "gallery"


def check_vectors(gallery: Path) -> None:
    """Every member's vectors are those that the model gives of its file, and search as such."""
    assert verify_gallery(gallery, sample=1000).problems == []
    opened = Gallery.open(gallery)
    assert opened.manifest.outputs == tuple(WIDTHS)
    for output, width in WIDTHS.items():
        view = opened.view(output)
        assert (view.width, view.ids.tolist()) == (width, opened.ids.tolist())
        pixels = np.stack([read_pixels(view.embedder, view.place(key).file) for key in view.ids.tolist()])
        expected = view.embedder.embed_batch(pixels)
        np.testing.assert_allclose(view.vectors(view.ids), expected, atol=1e-5)
        found = view.search(opened.place(int(view.ids[3])).file, k=3)
        best = np.argsort(-(expected @ expected[3]), kind="stable")[:3]
        assert [hit.id for hit in found] == view.ids[best].tolist()


def test_all_vectors_of_every_image_are_kept_through_every_change(gallery: Path, tmp_path: Path) -> None:
    images, before = tmp_path / "images", find_version(gallery).folder
    check_vectors(gallery)
    draw_image((10, 200, 90), seed=77).save(images / "red" / "new.jpg")
    draw_image((10, 100, 190), seed=78).save(next((images / "blue").glob("*.jpg")))
    update_gallery(gallery, config=SMALL)
    check_vectors(gallery)
    after = find_version(gallery).folder
    for name in ("vectors/00000.npy", "copy/vectors/00000.npy"):  # shared with the version before
        assert (before / name).stat().st_ino == (after / name).stat().st_ino
    draw_folder(tmp_path / "more", per_class=2)
    add_to_gallery(gallery, [tmp_path / "more"], config=SMALL)
    remove_from_gallery(gallery, sources=[str(tmp_path / "more")])
    assert Gallery.open(gallery).manifest.part("copy").counts["deleted"] > 0
    check_vectors(gallery)
    tune_gallery(gallery)
    assert Gallery.open(gallery).manifest.part("copy").counts["deleted"] == 0
    check_vectors(gallery)


def test_both_have_an_index_of_their_own(tmp_path: Path, outputs: Path) -> None:
    draw_folder(tmp_path / "images", per_class=15)
    with few_for_an_index():
        build(tmp_path / "images", tmp_path / "gallery", outputs, index={"index_type": "hnsw"})
    opened = Gallery.open(tmp_path / "gallery")
    assert [opened.view(output).index["type"] for output in WIDTHS] == ["hnsw", "hnsw", "flat"]
    assert (find_version(tmp_path / "gallery").folder / "copy" / "index.faiss").is_file()
    for output in OUTPUTS:
        view = opened.view(output)
        found = view.search_many(view.vectors(view.ids), k=1)
        assert np.mean([hits[0].id == key for hits, key in zip(found, view.ids.tolist(), strict=True)]) > 0.9


def test_a_gallery_of_one_output_has_no_second(tmp_path: Path, image_folder: Path, tiny_model: Path) -> None:
    build(image_folder, tmp_path / "gallery", tiny_model)
    opened = Gallery.open(tmp_path / "gallery")
    assert opened.view("semantic") is opened
    with pytest.raises(InputError, match="gallery: its model has no output for copy detection"):
        opened.view("copy")
    with pytest.raises(InputError, match="expected the output semantic or copy, got 'colour'"):
        opened.view("colour")


@pytest.mark.parametrize(
    "name", ["copy/vectors/00000.npy", pytest.param("untrained/ids/00000.npy", marks=pytest.mark.slow)]
)
def test_damage_to_either_is_found_and_mended(gallery: Path, name: str) -> None:
    flip(find_version(gallery).folder / name)
    assert any(name in problem for problem in verify_gallery(gallery).problems)
    repair_gallery(gallery)
    check_vectors(gallery)


def test_near_duplicates_are_told_by_their_pictures_from_the_models_cosine_on(tmp_path: Path) -> None:
    model = write_two_output_model(tmp_path / "two.onnx", threshold=0.999)
    images = tmp_path / "images"
    draw_folder(images, per_class=6)
    first = next((images / "red").glob("*.jpg"))
    Image.open(first).save(images / "red" / "again.png")
    report = build(images, tmp_path / "gallery", model, dedup="near")
    opened = Gallery.open(tmp_path / "gallery").view("copy")
    alike = opened.vectors(opened.ids) @ opened.vectors(opened.ids).T
    np.fill_diagonal(alike, 0)
    assert report.duplicate >= 1
    assert alike.max() < 0.999, "what is left is no copy of another"
    assert json.loads("".join(run(info, tmp_path / "gallery", "--json")))["settings"]["min_similarity"] == 0.999
    whole = build(images, tmp_path / "whole", model)
    found = find_duplicate_groups(Gallery.open(tmp_path / "whole"))
    assert len(found.kept_for) == report.duplicate
    assert whole.indexed == report.indexed + report.duplicate


def test_alike_images_raise_the_copy_threshold_of_their_gallery(tmp_path: Path) -> None:
    model = write_two_output_model(tmp_path / "two.onnx", threshold=0.9)
    (tmp_path / "images").mkdir()
    for number in range(60):
        draw_image((120, 90, 60), seed=number).save(tmp_path / "images" / f"{number}.png")
    gallery = tmp_path / "gallery"

    def settings() -> dict[str, object]:
        found: dict[str, object] = json.loads("".join(run(info, gallery, "--json")))["settings"]
        return found

    build(tmp_path / "images", gallery, model)
    listed = find_duplicate_groups(Gallery.open(gallery))
    report = build(tmp_path / "images", gallery, model, dedup="near")
    raised = settings()["min_similarity"]
    assert 0.9 < raised < 1
    assert listed.config == DuplicateConfig(raised, 64)
    assert 0 < report.duplicate == len(listed.kept_for)
    kept = Gallery.open(gallery).ids.tolist()
    assert find_duplicate_groups(Gallery.open(gallery)).config.min_similarity >= raised

    for number in range(60, 62):
        draw_image((120, 90, 60), seed=number).save(tmp_path / "images" / f"{number}.png")
    update_gallery(gallery, config=SMALL)
    assert set(kept) <= set(Gallery.open(gallery).ids.tolist()), "a kept image stays kept"
    assert settings()["min_similarity"] >= raised
    assert "min similarity 0.96" in "".join(run(info, gallery))

    given = build(tmp_path / "images", gallery, model, dedup="near", duplicates=DuplicateConfig(min_similarity=0.9))
    assert settings()["min_similarity"] == 0.9
    assert given.duplicate > report.duplicate
