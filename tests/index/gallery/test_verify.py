import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.durable import hash_file
from index.gallery.gallery import Gallery
from index.gallery.verify import VerifyReport, verify_gallery
from index.vectors.ann_index import AnnIndex
from index.versions.versions import find_version
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build, build_ann, change_catalog, change_manifest, mixed_folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of 30 images, a copy of the first, and three broken files."""
    folder = tmp_path_factory.mktemp("verify")
    images = mixed_folder(folder / "images")
    shutil.copy(images / "blue" / "0.jpg", images / "copy.jpg")
    build(images, folder / "g", tiny_model, dedup="exact")
    return folder / "g"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    """The gallery with its images beside it, which a test may change."""
    shutil.copytree(built.parent, tmp_path / "copy")
    folder = tmp_path / "copy"
    change_catalog(folder / "g", "UPDATE sources SET location = ?", os.fsencode(folder / "images"))
    return folder / "g"


def outcome(report: VerifyReport) -> tuple[int, list[str], list[str]]:
    return report.compared, report.problems, report.notes


def test_a_sound_gallery_has_no_problem_and_its_sample_embeds_as_stored(built: Path) -> None:
    report = verify_gallery(built, sample=20)
    assert outcome(report) == (20, [], [])
    assert (report.gallery, report.version, report.files) == (str(built), "000001", 4)
    assert verify_gallery(built).compared == 16
    assert verify_gallery(built, sample=0).compared == 0
    assert verify_gallery(built, sample=1000).compared == 30


def test_images_that_changed_or_are_gone_are_noted_and_are_no_damage(gallery: Path) -> None:
    images = gallery.parent / "images"
    (images / "red" / "1.png").unlink()
    draw_image((1, 2, 3), seed=0).save(images / "red" / "3.png")
    (images / "red" / "4.jpg").write_bytes(b"<html>")
    report = verify_gallery(gallery, sample=30, read_images=True)
    compared, problems, notes = outcome(report)
    assert (compared, problems) == (27, [])
    assert notes == [
        f"{images}/red/1.png: cannot be read any more: No such file or directory",
        f"{images}/red/3.png: was changed since it was indexed",
    ]
    (spoilt,) = report.spoilt  # told once, though it was looked at twice
    assert spoilt.startswith(f"{images}/red/4.jpg: was changed since it was indexed, and cannot be decoded any more")


def test_members_of_archives_are_verified(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.add(image_folder, "images")
    build(tmp_path / "images.tar", tmp_path / "g", tiny_model)
    assert outcome(verify_gallery(tmp_path / "g", sample=99)) == (15, [], [])
    os.utime(tmp_path / "images.tar")
    compared, problems, notes = outcome(verify_gallery(tmp_path / "g", sample=99))
    assert (compared, problems, len(notes)) == (0, [], 15)
    assert "the archive changed since it was scanned" in notes[0]


@pytest.mark.parametrize("is_image", [True, False])
def test_another_vector_than_the_one_of_the_same_bytes_is_a_problem(gallery: Path, is_image: bool) -> None:
    path = gallery.parent / "images" / "red" / "1.png"
    if is_image:
        draw_image((1, 2, 3), seed=0).save(path)
    else:
        path.write_bytes(b"<html>")
    change_catalog(gallery, "UPDATE images SET sha256 = ? WHERE path = ?", hash_file(path), b"red/1.png")
    (problem,) = verify_gallery(gallery, sample=30).problems
    what = "the stored vector and the one made from" if is_image else "cannot be embedded any more: none of JPEG"
    assert problem.startswith(f"{path}: the bytes are those indexed, but {what}")


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM images WHERE status = 'duplicate'", "the manifest says found 34, the catalogue 33"),
        ("UPDATE images SET reason = 'corrupt' WHERE status = 'skipped'", "the manifest says skipped_by_reason"),
        ("UPDATE images SET status = 'pending' WHERE status = 'skipped'", "3 items of the catalogue are still pending"),
        ("UPDATE images SET keeper = 7 WHERE status = 'duplicate'", "1 duplicates repeat an image that is not"),
        ("UPDATE images SET keeper = NULL WHERE status = 'duplicate'", "1 duplicates repeat an image that is not"),
        ("UPDATE images SET id = 99 WHERE id = 1", "the catalogue's indexed images are not those that have vectors"),
        ("UPDATE sqlite_sequence SET seq = 7", "the manifest says next_id 36, the catalogue 8"),
    ],
)
def test_the_catalogue_is_compared_with_the_other_parts(gallery: Path, statement: str, problem: str) -> None:
    change_catalog(gallery, statement)
    found = verify_gallery(gallery, sample=0).problems
    assert any(text.startswith(problem) for text in found), found


def test_a_scan_finds_every_image_by_its_own_vector(gallery: Path) -> None:
    change_vectors(gallery, lambda vectors: vectors * np.where(np.arange(30) == 0, np.float32(0.5), 1)[:, None])
    first = Gallery.open(gallery).ids[0]
    assert verify_gallery(gallery, sample=0).problems == [
        "some vectors are not finite unit vectors",
        f"the index does not find image {first} by its own vector",
    ]


def change_vectors(gallery: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    path = find_version(gallery).folder / "vectors" / "00000.npy"
    np.save(path, change(np.load(path)).astype(np.float32))
    change_manifest(gallery)


@pytest.fixture(scope="module", params=["hnsw", pytest.param("ivf", marks=pytest.mark.slow)])
def indexed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of 300 images whose index may miss some."""
    folder = tmp_path_factory.mktemp(request.param)
    draw_folder(folder / "images", per_class=100)
    build_ann(folder / "images", folder / "g", tiny_model, index_type=request.param, recall_target=0.5)
    if request.param == "ivf":  # the fastest setting of a slow moment may rank all 300 again, and so miss none
        change_manifest(folder / "g", index={"parameters": {"nprobe": 1, "candidates": 20}})
    return folder / "g"


def test_the_vectors_are_compared_with_the_index(indexed: Path, tmp_path: Path) -> None:
    shutil.copytree(indexed, tmp_path / "g")
    assert verify_gallery(tmp_path / "g", sample=0).problems == []
    change_vectors(tmp_path / "g", lambda vectors: np.random.default_rng(0).permutation(vectors))
    (problem,) = verify_gallery(tmp_path / "g", sample=0, seed=0).problems
    assert re.match(r"the index finds \d+ of 20\d images by their own vectors, about \d+ are expected;", problem)


@pytest.mark.parametrize(
    ("measured", "kept", "is_problem"), [(1.0, 0.99, False), (1.0, 0.85, True), (0.5, 0.5, False), (0.5, 0.2, True)]
)
def test_an_index_may_miss_what_it_missed_when_it_was_measured_but_not_far_more(
    indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: float, kept: float, is_problem: bool
) -> None:
    shutil.copytree(indexed, tmp_path / "g")
    change_manifest(tmp_path / "g", index={"recall_at_10": measured, "recall_error": 0.0})
    random = np.random.default_rng(1)
    search = AnnIndex.search

    def miss(self: AnnIndex, queries: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """Give some queries images of another class alone."""
        scores, positions = search(self, queries, **options)
        return scores, np.where(random.random((len(scores), 1)) < kept, positions, (positions + 150) % 300)

    monkeypatch.setattr(AnnIndex, "search", miss)
    problems = verify_gallery(tmp_path / "g", sample=0, seed=0).problems
    assert bool(problems) == is_problem, problems


def test_every_damaged_file_is_named_and_nothing_else_is_tried(gallery: Path) -> None:
    folder = find_version(gallery).folder
    for name in ("vectors/00000.npy", "catalog.sqlite"):
        with (folder / name).open("ab") as file:
            file.write(b"x")
    (folder / "model.onnx").unlink()
    compared, problems, notes = outcome(verify_gallery(gallery))
    assert (compared, notes) == (0, [])
    assert len(problems) == 3
    for name in ("vectors/00000.npy: damaged", "catalog.sqlite: damaged", "model.onnx: cannot be read"):
        assert any(name in problem for problem in problems), name
    (folder / "manifest.json").write_text("{")
    (problem,) = verify_gallery(gallery).problems
    assert "manifest.json: damaged" in problem


def test_a_model_that_is_not_the_manifests_is_a_problem(gallery: Path) -> None:
    change_manifest(gallery, model_sha256="0" * 64)
    assert verify_gallery(gallery).problems == ["the model file is not the one that the manifest names"]
