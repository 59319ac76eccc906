"""Exported data sets, read back by this package's own sources and by Hugging Face `datasets`."""

import csv
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.labels.decisions import PRESENT, LabelDecision, Mark
from index.sources.reading import read_place
from index.sources.registry import find_source
from index.writing.build import build_gallery
from retrieval_app import export_dataset
from retrieval_app.commands.dataset_command import dataset
from retrieval_app.dataset_export.rows import plan_rows
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_image, room_for
from tests.index.galleries import invoke

LABELS = [
    *("cat", "Cat", "a/b", "..", "CON", "x" * 300, "caf\u00e9", "cafe\u0301", ".x \U0001f431", "unlabelled"),
    *("train", "metadata.parquet", "", ""),
]
Truth = dict[str, tuple[str | None, dict[str, Any]]]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Sixteen members with odd labels and mixed metadata, of a table and a tar; not to be changed."""
    home = tmp_path_factory.mktemp("odd")
    (home / "photos" / "deep").mkdir(parents=True)
    with (home / "photos" / "photos.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "price", "note", "split", "id", "rare"])
        for number, label in enumerate(LABELS):
            name = f"{'deep/' if number % 2 else ''}{number // 2}.png"
            draw_image((9 * number, 90, 200), seed=number).save(home / "photos" / name)
            price = "cheap" if number == 3 else number / 2
            table.writerow(
                [name, label, price, number, "1" if number < 4 else "", f"i{number}", "yes" if number == 5 else ""]
            )
    with tarfile.open(home / "more.tar", "w") as archive:
        for number in range(3):
            draw_image((200, 9, 50 * number), seed=50 + number).save(home / "one.png")
            archive.add(home / "one.png", f"dog/{number}.png")
    build_gallery(
        model_path=tiny_model, sources=[home / "photos" / "photos.csv", home / "more.tar"], out=home / "gallery"
    )
    rows = Gallery.open(home / "gallery").rows(range(1, 18))
    store = ReviewStore.of_gallery(home / "gallery")
    store.decide([LabelDecision(rows[0].sha256, "cat", "change", "dog")])
    store.decide([LabelDecision(rows[16].sha256, "dog", "drop", None)])
    store.decide([Mark(rows[1].sha256, "tag:best", PRESENT), Mark(rows[1].sha256, "tag:a b", PRESENT)])
    store.decide([Mark(rows[2].sha256, "split", "my split/1")])
    store.close()
    return Gallery.open(home / "gallery")


def expected(gallery: Gallery) -> Truth:
    plan = plan_rows(gallery, None, split=None, by_group=False, seed=0)
    truth = {}
    for row in gallery.rows(gallery.ids.tolist()):
        values = {name: value for name, value in plan.describe(row).items() if value is not None and name != "label"}
        truth[row.sha256] = row.label, {name: value for name, value in values.items() if value != []}
    return truth


def read_back(out: Path) -> Truth:
    source, found = find_source(str(out)), dict[str, tuple[str | None, dict[str, Any]]]()
    for item in source.scan():
        data = read_place(source.locate(item))
        metadata = {name: value for name, value in (item.metadata or {}).items() if value != []}
        found[hashlib.sha256(data).hexdigest()] = item.label, metadata
    return found


def test_what_is_exported_is_read_back_equal(gallery: Gallery, tmp_path: Path) -> None:
    report = export_dataset(gallery, tmp_path / "out")
    assert (report.images, report.unlabelled, report.left_out) == (16, 2, ())
    assert report.splits == {"1": 3, "my split/1": 1, "rest": 12}
    assert report.linked == 14
    assert read_back(tmp_path / "out") == expected(gallery)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["images"], manifest["labels"]["dog"]) == (16, 3)
    assert os.listdir(tmp_path) == ["out"]


def test_columns_have_one_type_and_tags_and_splits_of_people(gallery: Gallery) -> None:
    found = dict(expected(gallery).values())
    assert found["Cat"]["tags"] == ["a b", "best"]
    assert found["a/b"]["split"] == "my split/1"
    assert (found["CON"]["price"], found[".."]["price"], found["CON"]["note"], found["CON"]["id"]) == (
        "2.0",
        "cheap",
        4,
        "i4",
    )
    assert found["dog"]["original_path"] == "more.tar/dog/1.png"


@pytest.mark.slow
def test_hugging_face_reads_it_back_equal(gallery: Gallery, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export_dataset(gallery, tmp_path / "out")
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    found: Truth = {}
    for split in loaded.values():
        for row in split.cast_column("image", datasets.Image(decode=False)):
            image, label = row.pop("image"), row.pop("label")
            data = image["bytes"] or Path(image["path"]).read_bytes()
            found[hashlib.sha256(data).hexdigest()] = (
                label,
                {name: one for name, one in row.items() if one not in (None, [])},
            )
    assert found == expected(gallery)
    assert sorted(map(len, loaded.values())) == [1, 3, 12]
    assert {image.size for image in loaded["rest"]["image"]} == {(64, 48)}


def test_new_splits_never_divide_near_duplicates(tmp_path: Path, tiny_model: Path) -> None:
    for number in range(30):
        folder = tmp_path / "photos" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        for copy in "xy":
            image = draw_image((8 * number, 90, 250 - 8 * number), seed=number)
            image.save(folder / f"{number * 5}-{copy}.png")
    build_gallery(model_path=tiny_model, sources=[tmp_path / "photos"], out=tmp_path / "gallery")
    report = export_dataset(tmp_path / "gallery", tmp_path / "out", split="60/20/20", seed=3)
    split_of: dict[str, set[str]] = {}
    for file in (tmp_path / "out").glob("*/*/*.png"):
        split_of.setdefault(hashlib.sha256(file.read_bytes()).hexdigest(), set()).add(file.parts[-3])
    assert len(split_of) == 30
    assert all(len(splits) == 1 for splits in split_of.values())
    assert sum(report.splits.values()) == 60
    assert min(report.splits.values()) >= 2


def test_a_filter_selects_and_changed_images_are_left_out(tmp_path: Path, tiny_model: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        draw_image((90, 90, 200), seed=len(name) + ord(name[2])).save(tmp_path / "photos" / name)
    build_gallery(model_path=tiny_model, sources=[tmp_path / "photos"], out=tmp_path / "gallery")
    (tmp_path / "photos" / "a" / "2.png").write_bytes(b"another file")
    result = invoke(dataset, "export", tmp_path / "gallery", "--out", tmp_path / "out", "--where", "label = 'a'")
    assert result.exit_code == 1
    assert "1 images of 1 labels; 1 are hard links" in result.stdout
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.png")) == ["1.png"]
    (left_out,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["left_out"]
    assert left_out["path"] == "a/2.png"
    (tmp_path / "photos" / "a" / "1.png").unlink()
    with pytest.raises(InputError, match="no image of it can be read"):
        export_dataset(tmp_path / "gallery", tmp_path / "none", where=parse_filter("label = 'a'"))
    assert not (tmp_path / "none").exists()


def test_an_interrupted_export_or_a_full_disk_leaves_nothing(gallery: Gallery, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_dataset(gallery, tmp_path / "out", progress=stop)
    with room_for(256), pytest.raises(InputError, match=r"out: cannot be written: .*large; nothing is left of it"):
        export_dataset(gallery, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_what_a_killed_export_left_is_cleared_by_the_next(gallery: Gallery, tmp_path: Path) -> None:
    left = tmp_path / ".out.unfinished" / "retrieval-dataset" / "cat"
    left.mkdir(parents=True)
    (left / "half.png").write_bytes(b"half")
    (tmp_path / "out").mkdir()
    export_dataset(gallery, tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert not list(tmp_path.rglob("half.png"))


def test_a_folder_of_somebody_else_is_no_unfinished_export(gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / ".out.unfinished" / "mine").mkdir(parents=True)
    with pytest.raises(InputError, match=r"\.out\.unfinished: expected nothing or .*, found mine; move it"):
        export_dataset(gallery, tmp_path / "out")
    assert os.listdir(tmp_path / ".out.unfinished") == ["mine"]


def test_places_and_options_that_cannot_be_used_are_refused(gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").write_bytes(b"mine")
    for out, problem in (
        (tmp_path / "mine", "exists already, and is not an empty folder"),
        (tmp_path / "none" / "out", "there is no folder"),
        (gallery.path / "out", "where the gallery or its images are"),
    ):
        with pytest.raises(InputError, match=problem):
            export_dataset(gallery, out)
    for options, problem in (
        ({"by": "label"}, "by: expected group or image"),
        ({"split": "90/5"}, "expected percentages that add up to 100"),
        ({"where": "label = 'a/b' AND id = 1"}, "no image matches the filter"),
    ):
        with pytest.raises(InputError, match=problem):
            export_dataset(gallery, tmp_path / "out", **options)
    assert sorted(os.listdir(tmp_path)) == ["mine"]


def test_a_folder_in_a_source_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "photos").mkdir()
    draw_image((90, 90, 200), seed=1).save(tmp_path / "photos" / "1.png")
    build_gallery(model_path=tiny_model, sources=[tmp_path / "photos"], out=tmp_path / "gallery")
    with pytest.raises(InputError, match="would index the copies too"):
        export_dataset(tmp_path / "gallery", tmp_path / "photos" / "out")
