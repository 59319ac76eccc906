"""Building again: what is kept, what is embedded anew, what is refused, what is removed."""

import os
import shutil
from pathlib import Path

import pytest

from index.errors import GalleryError, GalleryMismatchError, ImageError, InputError
from index.gallery.gallery import Gallery
from index.sources.items import Place
from index.sources.reading import read_place
from index.versions.versions import find_version
from index.writing.build import update_gallery
from index.writing.copying import compact_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build, build_ann, rows, vectors
from tests.models import write_tiny_model


def test_another_model_or_source_is_refused(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    other = write_tiny_model(tmp_path / "other.onnx", seed=1)
    with pytest.raises(GalleryMismatchError, match=r"model \(SHA-256\).*--out"):
        build(image_folder, tmp_path / "g", other)
    with pytest.raises(GalleryMismatchError, match=r"sources.*index add.*--root.*--out"):
        build(draw_folder(tmp_path / "elsewhere"), tmp_path / "g", tiny_model)
    assert build(image_folder, tmp_path / "g", tiny_model).new_images == 0


def test_a_moved_folder_is_not_embedded_again(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    before = {row.path: row.id for row in rows(tmp_path / "g")}
    moved = image_folder.rename(tmp_path / "new place")
    with pytest.raises(InputError, match="no such folder"):
        update_gallery(tmp_path / "g")
    draw_image((1, 2, 3), seed=0).save(moved / "new.png")
    report = update_gallery(tmp_path / "g", roots={None: moved})
    assert (report.version, report.new_images, report.indexed) == ("000002", 1, 16)
    assert before.items() <= {row.path: row.id for row in rows(tmp_path / "g")}.items()
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.sources[1].root == str(moved)
    assert read_place(gallery.place(before["red/1.png"])) == (moved / "red/1.png").read_bytes()
    third = moved.rename(tmp_path / "third")
    again = update_gallery(tmp_path / "g", roots={str(moved): third})
    assert (again.version, again.changed, again.new_images) == ("000003", True, 0)
    assert not build(third, tmp_path / "g", tiny_model).changed
    with pytest.raises(InputError, match=r"nowhere: no source of the gallery; its sources are .*third"):
        update_gallery(tmp_path / "g", roots={"nowhere": tmp_path})


def test_two_versions_are_kept_and_those_in_use(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    versions = tmp_path / "g" / "versions"
    build(image_folder, tmp_path / "g", tiny_model)
    opened = Gallery.open(tmp_path / "g")
    for number in range(3):
        draw_image((number, 2, 3), seed=number).save(image_folder / f"new{number}.png")
        build(image_folder, tmp_path / "g", tiny_model)
    assert sorted(os.listdir(versions)) == ["000001", "000003", "000004"]
    assert opened.search(opened.vector(1), k=3)[0].id == 1
    assert (opened.embedder.sha256, opened.count) == (opened.manifest.model_sha256, 15)
    del opened
    (leftover := versions / "000002").mkdir()  # as a removal that was killed leaves it
    (leftover / "model.onnx").write_bytes(b"x")
    shutil.copy(versions / "000003" / "part.json", leftover)
    assert not build(image_folder, tmp_path / "g", tiny_model).changed
    assert sorted(os.listdir(versions)) == ["000003", "000004"]


def test_a_mended_file_gets_its_vector_between_those_of_the_version_before(
    tmp_path: Path, image_folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = ImageError(path="x", reason="unreadable", detail="Input/output error")

    def fail_for_some(place: Place) -> bytes:
        if place.file.name == "2.jpg":
            raise unreadable
        return read_place(place)

    with monkeypatch.context() as patched:
        patched.setattr("index.embedding.engine.read_place", fail_for_some)
        assert build(image_folder, tmp_path / "g", tiny_model).skipped == 3
    monkeypatch.setattr("index.vectors.shards.SHARD_ROWS", 4)
    assert build(image_folder, tmp_path / "g", tiny_model).new_images == 3
    build(image_folder, tmp_path / "whole", tiny_model)
    assert sorted(vectors(tmp_path / "g").values()) == sorted(vectors(tmp_path / "whole").values())
    ids = [{row.path: row.id for row in rows(tmp_path / name)} for name in ("g", "whole")]
    assert ids[0] == ids[1]


def test_damaged_vectors_go_no_further(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    shard = tmp_path / "g" / "versions" / "000001" / "vectors" / "00000.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    draw_image((1, 2, 3), seed=0).save(image_folder / "new.png")
    build(image_folder, tmp_path / "g", tiny_model)  # shares the file, under its old checksum
    with pytest.raises(GalleryError, match=r"00000.npy: damaged: its SHA-256"):
        Gallery.open(tmp_path / "g")
    with pytest.raises(GalleryError, match=r"00000.npy: damaged: its SHA-256"):
        compact_gallery(tmp_path / "g")
    assert find_version(tmp_path / "g").name == "000002"


def test_a_damaged_gallery_is_never_called_up_to_date(tmp_path: Path, tiny_model: Path) -> None:
    folder = draw_folder(tmp_path / "images", per_class=7)
    build_ann(folder, tmp_path / "whole", tiny_model)
    for name in ("model.onnx", "index.faiss", "held_out.npy", "vectors/00000.npy", "manifest.json", "catalog.sqlite"):
        shutil.rmtree(tmp_path / "g", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "g")
        (tmp_path / "g" / "versions" / "000001" / name).write_bytes(b"cut")
        for _ in range(2):
            with pytest.raises(GalleryError, match=r"`retrieval index repair`.* `retrieval index rollback`"):
                build_ann(folder, tmp_path / "g", tiny_model)
