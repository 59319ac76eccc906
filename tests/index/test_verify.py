from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from index.errors import GalleryError
from index.gallery import Gallery, find_version
from index.model_file import hash_file
from index.verify import VerifyReport, verify_gallery
from index.versions import describe_file, set_current
from tests.conftest import draw_image
from tests.index.galleries import build, mixed_folder


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


def change_catalog(gallery: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(find_version(gallery).folder / "catalog.sqlite")) as connection, connection:
        connection.execute(statement, values)
    change_manifest(gallery)


def change_manifest(gallery: Path, **changes: object) -> None:
    """Change a manifest, and let it and CURRENT name the files as they are: only their content can be wrong."""
    folder = find_version(gallery).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {name: describe_file(folder / name) for name in manifest["files"]}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files, **changes}))
    set_current(gallery, folder)


def counts(gallery: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads((find_version(gallery).folder / "manifest.json").read_text())["counts"]
    return values


def outcome(report: VerifyReport) -> tuple[int, list[str], list[str]]:
    return report.compared, report.problems, report.notes


def test_a_sound_gallery_has_no_problem_and_its_sample_embeds_as_stored(built: Path) -> None:
    files: list[tuple[int, int]] = []
    images: list[tuple[int, int]] = []
    report = verify_gallery(
        built, sample=20, progress=lambda *done: files.append(done), embedding=lambda *done: images.append(done)
    )
    assert outcome(report) == (20, [], [])
    assert (report.gallery, report.version, report.files) == (str(built), "000001", 5)
    assert files == [(number, 5) for number in range(1, 6)]
    assert images[-1] == (20, 20)
    assert verify_gallery(built).compared == 16
    assert verify_gallery(built, sample=0).compared == 0
    assert verify_gallery(built, sample=1000).compared == 30


def test_images_that_changed_or_are_gone_are_noted_and_are_no_damage(gallery: Path) -> None:
    images = gallery.parent / "images"
    (images / "red" / "1.png").unlink()
    draw_image((1, 2, 3), seed=0).save(images / "red" / "3.png")
    (images / "red" / "4.jpg").write_bytes(b"<html>")
    compared, problems, notes = outcome(verify_gallery(gallery, sample=30))
    assert (compared, problems) == (27, [])
    assert notes == [
        f"{images}/red/1.png: cannot be read any more: No such file or directory",
        f"{images}/red/3.png: was changed since it was indexed",
        f"{images}/red/4.jpg: was changed since it was indexed",
    ]


def test_a_seed_chooses_the_sample(gallery: Path) -> None:
    shutil.rmtree(gallery.parent / "images")
    samples = [verify_gallery(gallery, sample=10, seed=seed).notes for seed in (0, 0, 1)]
    assert len(samples[0]) == 10
    assert samples[0] == samples[1] != samples[2]


def test_members_of_an_archive_are_embedded_again_unless_it_changed(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.add(image_folder, "images")
    build(tmp_path / "images.tar", tmp_path / "g", tiny_model)
    assert outcome(verify_gallery(tmp_path / "g", sample=99)) == (15, [], [])
    os.utime(tmp_path / "images.tar")
    compared, problems, notes = outcome(verify_gallery(tmp_path / "g", sample=99))
    assert (compared, problems, len(notes)) == (0, [], 15)
    assert "the archive changed since it was scanned" in notes[0]


def test_another_vector_than_the_one_of_the_same_bytes_is_a_problem(gallery: Path) -> None:
    path = gallery.parent / "images" / "red" / "1.png"
    draw_image((1, 2, 3), seed=0).save(path)
    change_catalog(gallery, "UPDATE images SET sha256 = ? WHERE path = ?", hash_file(path), b"red/1.png")
    compared, (problem,), notes = outcome(verify_gallery(gallery, sample=30))
    assert (compared, notes) == (30, [])
    assert problem.startswith(f"{path}: the bytes are those indexed, but the stored vector and the one made from")


def test_indexed_bytes_that_are_no_image_are_a_problem(gallery: Path) -> None:
    path = gallery.parent / "images" / "red" / "1.png"
    path.write_bytes(b"<html>")
    change_catalog(gallery, "UPDATE images SET sha256 = ? WHERE path = ?", hash_file(path), b"red/1.png")
    (problem,) = verify_gallery(gallery, sample=30).problems
    assert problem.startswith(
        f"{path}: the bytes are those indexed, but cannot be embedded any more: none of JPEG"
    )


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM images WHERE status = 'duplicate'", "the manifest says found 34, the catalogue 33"),
        ("UPDATE images SET reason = 'corrupt' WHERE status = 'skipped'", "the manifest says skipped_by_reason"),
        ("UPDATE images SET status = 'pending' WHERE status = 'skipped'", "3 items of the catalogue were never"),
        ("UPDATE images SET keeper = 7 WHERE status = 'duplicate'", "1 duplicates repeat an image that is not"),
        ("UPDATE images SET keeper = NULL WHERE status = 'duplicate'", "1 duplicates repeat an image that is not"),
        ("UPDATE images SET id = 99 WHERE id = 1", "the catalogue's indexed images are not those that have vectors"),
        ("UPDATE sqlite_sequence SET seq = 7", "the manifest says next_id 36, the catalogue 8"),
    ],
)  # fmt: skip
def test_the_catalogue_is_compared_with_the_other_parts(gallery: Path, statement: str, problem: str) -> None:
    change_catalog(gallery, statement)
    found = verify_gallery(gallery, sample=0).problems
    assert any(text.startswith(problem) for text in found), found


def test_the_vectors_are_compared_with_the_index(gallery: Path) -> None:
    path = find_version(gallery).folder / "vectors" / "00000.npy"
    vectors = np.load(path)
    vectors[0] = -vectors[0]
    vectors[5] *= 2
    np.save(path, vectors)
    change_manifest(gallery)
    first = Gallery.open(gallery).ids[0]
    assert verify_gallery(gallery, sample=0).problems == [
        "some vectors are not finite unit vectors",
        f"the index does not find image {first} by its own vector",
    ]


def test_counts_that_do_not_add_up_are_a_problem(gallery: Path) -> None:
    change_manifest(gallery, counts={**counts(gallery), "found": 35})
    assert verify_gallery(gallery, sample=0).problems == ["the manifest says found 35, the catalogue 34"]


def test_every_damaged_file_is_named_and_nothing_else_is_tried(gallery: Path) -> None:
    folder = find_version(gallery).folder
    for name in ("index.faiss", "catalog.sqlite"):
        with (folder / name).open("ab") as file:
            file.write(b"x")
    (folder / "model.onnx").unlink()
    compared, problems, notes = outcome(verify_gallery(gallery))
    assert (compared, notes) == (0, [])
    assert len(problems) == 3
    for name in ("index.faiss: damaged", "catalog.sqlite: damaged", "model.onnx: cannot be read"):
        assert any(name in problem for problem in problems), name
    (folder / "manifest.json").write_text("{")
    (problem,) = verify_gallery(gallery).problems
    assert "manifest.json: damaged" in problem


def test_a_model_that_is_not_the_manifests_is_a_problem(gallery: Path) -> None:
    change_manifest(gallery, model_sha256="0" * 64)
    assert verify_gallery(gallery).problems == ["the model file is not the one that the manifest names"]


def test_a_folder_that_is_no_gallery_cannot_be_checked(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="no such gallery"):
        verify_gallery(tmp_path / "none")
