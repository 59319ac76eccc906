import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from index.duplicates.duplicate_config import DuplicateConfig
from index.durable import hash_file
from index.errors import GalleryError
from index.gallery.info import find_unfinished, is_worth_tuning, read_info
from index.gallery.selection import Selection
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, build_gallery, remove_from_gallery, update_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build, build_ann, mixed_folder


def stop_after_12(done: int, total: int) -> None:
    if done >= 12:
        raise KeyboardInterrupt


def test_it_says_what_a_gallery_holds_and_takes(tmp_path: Path, tiny_model: Path) -> None:
    images = mixed_folder(tmp_path / "images")
    shutil.copy(images / "red" / "1.png", images / "red" / "copy.png")
    draw_image((1, 2, 3), seed=0).save(images / "unlabelled.png")
    build(images, tmp_path / "g", tiny_model, dedup="near", duplicates=DuplicateConfig(min_similarity=0.99))
    folder = find_version(tmp_path / "g").folder
    os.utime(folder / "manifest.json", (1e9, 1e9))
    info = read_info(tmp_path / "g")
    assert (info["gallery"], info["version"]) == (f"{tmp_path}/g", "000001")
    assert datetime.fromisoformat(info["made"]).timestamp() == 1e9
    assert (info["model"]["sha256"], info["model"]["backbone"]) == (hash_file(tiny_model), "tiny")
    found, indexed, duplicate, skipped = (info["counts"][name] for name in ("found", "indexed", "duplicate", "skipped"))
    assert found == indexed + duplicate + skipped == 35
    assert info["counts"]["skipped_by_reason"] == {"not-an-image": skipped}
    assert info["sources"] == [{"kind": "folder", "location": str(images), "images": indexed}]
    labels = info["labels"]["largest"]
    assert set(labels) == {"blue", "green", "red"}
    assert info["labels"]["count"] == 3
    assert info["labels"]["images"] == sum(labels.values()) == indexed - 1
    assert info["settings"] == {"dedup": "near", "min_similarity": 0.99, "max_hash_distance": 6, "labels": None}
    told = (info["index"]["type"], info["beside_index"], info["should_tune"], info["unfinished"])
    assert told == ("flat", 0, False, None)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*.*")}
    vectors = sizes["vectors/00000.npy"] + sizes["ids/00000.npy"]
    assert (info["disk_bytes"]["vectors"], info["disk_bytes"]["index"]) == (vectors, 0)
    assert info["disk_bytes"]["total"] == sum(sizes.values()) - sizes["manifest.json"] - sizes["part.json"]
    assert info["disk_bytes"]["each_image"] == round((vectors + sizes["catalog.sqlite"]) / indexed)
    whole = sum(file.stat().st_size for file in (tmp_path / "g").rglob("*") if file.is_file())
    assert info["disk_bytes"]["whole_folder"] == whole


def test_an_index_of_its_own_file_is_told_with_what_it_takes(tmp_path: Path, tiny_model: Path) -> None:
    folder = draw_folder(tmp_path / "images", per_class=7)
    build_ann(folder, tmp_path / "g", tiny_model, recall_target=0.9)
    info = read_info(tmp_path / "g")
    assert (info["index"]["type"], info["index"]["recall_target"], info["index"]["queries"]) == ("hnsw", 0.9, 1)
    version = find_version(tmp_path / "g").folder
    own = (version / "index.faiss").stat().st_size
    assert info["disk_bytes"]["index"] == own
    remove_from_gallery(tmp_path / "g", selection=Selection(patterns=("red/0.jpg",)), config=SMALL)
    deleted = (find_version(tmp_path / "g").folder / "deleted.npy").stat().st_size
    assert read_info(tmp_path / "g")["disk_bytes"]["index"] == own + deleted


def test_sources_are_counted_apart(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\nimages/red/0.jpg,apple\n")
    build(image_folder, tmp_path / "g", tiny_model, labels_file=tmp_path / "labels.csv")
    draw_folder(tmp_path / "more", per_class=2)
    add_to_gallery(tmp_path / "g", [tmp_path / "more"], config=SMALL)
    twice = tuple(f"{folder}/red/0.jpg" for folder in (image_folder, tmp_path / "more"))
    remove_from_gallery(tmp_path / "g", selection=Selection(patterns=twice), config=SMALL)
    info = read_info(tmp_path / "g")
    assert [(source["kind"], source["location"], source["images"]) for source in info["sources"]] == [
        ("folder", str(image_folder), 14),
        ("folder", str(tmp_path / "more"), 5),
    ]
    assert info["settings"] == {"dedup": "off", "labels": str(tmp_path / "labels.csv")}
    assert info["labels"] == {"count": 0, "images": 0, "largest": {}}
    assert (info["beside_index"], info["counts"]["deleted"], info["should_tune"]) == (6, 2, False)
    assert info["disk_bytes"]["whole_folder"] < 2 * info["disk_bytes"]["total"] + 20_000  # versions share files


@pytest.mark.parametrize(
    ("indexed", "deleted", "beside", "is_worth_it"),
    [(100, 50, 50, False), (10_000, 500, 600, True), (10**6, 20_000, 20_000, False), (10**6, 30_000, 20_000, True)],
)
def test_tuning_pays_after_many_changes(indexed: int, deleted: int, beside: int, is_worth_it: bool) -> None:
    assert is_worth_tuning({"indexed": indexed, "deleted": deleted}, beside) == is_worth_it


def test_a_first_build_that_was_stopped_has_no_version_but_is_so_far(tmp_path: Path, tiny_model: Path) -> None:
    images = mixed_folder(tmp_path / "images")
    with pytest.raises(KeyboardInterrupt):
        build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "g", config=SMALL, progress=stop_after_12)
    unfinished = find_unfinished(tmp_path / "g")
    assert unfinished == {"found": 33, "done": 8}  # one checkpoint
    with pytest.raises(GalleryError, match="has not finished"):
        read_info(tmp_path / "g")
    assert update_gallery(tmp_path / "g", config=SMALL).indexed == 30
    assert find_unfinished(tmp_path / "g") is None


def test_an_update_that_was_stopped_waits_beside_the_version(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images")
    build(images, tmp_path / "g", tiny_model)
    for number in range(20):
        draw_image((number, 2, 3), seed=number).save(images / f"new{number}.png")
    with pytest.raises(KeyboardInterrupt):
        update_gallery(tmp_path / "g", config=SMALL, progress=stop_after_12)
    info = read_info(tmp_path / "g")
    assert (info["version"], info["counts"]["found"], info["unfinished"]) == ("000001", 15, {"found": 35, "done": 23})
    (tmp_path / "g" / "building" / "catalog.sqlite").unlink()
    assert read_info(tmp_path / "g")["unfinished"] == {"found": 0, "done": 0}
