"""Datasets: what is listed, what is dropped, and what is refused before any long work."""

import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision, Mark
from index.sources.table_rows import TableColumns
from index.writing.build import build_gallery
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_folder
from training.data import transforms
from training.data.datasets import (
    Record,
    cap_classes,
    check_trainable,
    keep_usable_classes,
    list_dataset,
    list_splits,
    require_outside,
)
from training.data.transforms import EDITS, draw_copy


def _save(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), "red").save(path)
    return path


def test_a_folder_gives_the_first_folder_as_label_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/1.png", "a/deep/er/1.png", "a/0.png"):
        _save(tmp_path / name)
    records = list_dataset(tmp_path).records
    names = [(record.path.relative_to(tmp_path.resolve()).as_posix(), record.label) for record in records]
    assert names == [("a/0.png", "a"), ("a/deep/er/1.png", "a"), ("b/1.png", "b"), ("b/2.png", "b")]
    assert all(record.path.is_absolute() for record in records)


def test_files_without_a_class_folder_and_those_that_cannot_be_read_are_left_out(tmp_path: Path, caplog) -> None:
    _save(tmp_path / "stray.png")
    _save(tmp_path / "a/1.png")
    (tmp_path / "a/gone.png").symlink_to(tmp_path / "nowhere.png")
    dataset = list_dataset(tmp_path)
    assert [record.label for record in dataset.records] == ["a"]
    assert f"not in a class folder of {tmp_path}: 1 (stray.png)" in caplog.text
    assert [(path.name, problem.reason) for path, problem in dataset.skipped] == [("gone.png", "dangling-link")]


def test_a_csv_gives_paths_beside_it_with_their_labels(tmp_path: Path) -> None:
    for name in ("x/1.png", "x/2.png", "y.png", "z.png"):
        _save(tmp_path / name)
    table = tmp_path / "labels.csv"
    table.write_text(f"label,path,note\nb,x/2.png,\na,x/1.png,hm\n,z.png,unlabelled\nc,{tmp_path / 'y.png'},\n")
    found = {record.path: record.label for record in list_dataset(table).records}
    assert found == {tmp_path / "x/1.png": "a", tmp_path / "x/2.png": "b", tmp_path / "y.png": "c"}


def test_a_list_of_decisions_is_refused_as_its_labels_are_those_given_before_them(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label,decision,new_label\na.jpg,hat,change,shoes\n")
    with pytest.raises(InputError, match=r"labels\.csv: a list of decisions"):
        list_dataset(table)


def test_a_gallery_gives_its_files_with_labels_and_splits_as_decided(tmp_path: Path, tiny_model, caplog) -> None:
    photos, gallery = draw_folder(tmp_path / "photos", per_class=2), tmp_path / "gallery"
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        archive.add(_save(tmp_path / "one.png"), "red/one.png")
    build_gallery(model_path=tiny_model, sources=[photos, tmp_path / "more.tar"], out=gallery)
    by_name = {row.path: row for row in Gallery.open(gallery).rows(range(1, 7))}
    store = ReviewStore.of_gallery(gallery)
    store.decide([LabelDecision(by_name["blue/1.png"].sha256, "blue", "change", "red")])
    store.decide([LabelDecision(by_name["green/0.jpg"].sha256, "green", "drop")])
    store.decide([Mark(row.sha256, "split", "train" if "0" in name else "test") for name, row in by_name.items()])
    store.close()
    kept = {"blue/0.jpg": "blue", "blue/1.png": "red", "green/1.png": "green", "red/0.jpg": "red", "red/1.png": "red"}
    expected = [
        Record(photos / name, label, p_right=1 if name == "blue/1.png" else None) for name, label in kept.items()
    ]
    assert list(list_dataset(gallery).records) == expected
    assert "in archives or remote stores, which training does not read: 1;" in caplog.text
    with pytest.raises(InputError, match=r"--out .* lies inside the images in .*photos"):
        require_outside(photos / "run", data=gallery, flag="--out")
    training, held_out = list_splits(gallery, columns=TableColumns(), split_column="split")
    assert ([*training.records], [*held_out.records]) == (expected[::3], [expected[1], expected[2], expected[4]])


@pytest.fixture
def products(tmp_path: Path) -> Path:
    """A table whose columns have other names, in which a column says what an image is for."""
    splits = ["train", "Train", "val", "test", "", "training", "valid"]
    rows = [f"{number}.png,{'cup' if number % 2 else 'mug'},{split}" for number, split in enumerate(splits)]
    table = tmp_path / "products.csv"
    table.write_text("\n".join(["image,class,split", *rows]) + "\n")
    return table


COLUMNS = TableColumns(path="image", label="class")


def test_the_columns_of_a_table_can_be_named(products: Path) -> None:
    records = list_dataset(products, columns=COLUMNS).records
    assert [record.label for record in records] == ["mug", "cup", "mug", "cup", "mug", "cup", "mug"]
    assert list_dataset(Path(f"{products}#path=image,label=class")).records == records


def test_a_column_tells_what_trains_and_what_validates_and_the_rest_is_left_out_and_said(products, caplog) -> None:
    training, held_out = list_splits(products, columns=COLUMNS, split_column="split")
    assert [record.path.stem for record in training.records] == ["0", "1", "5"]
    assert [record.path.stem for record in held_out.records] == ["2", "6"]
    assert "left out, because neither train nor validation: 'nothing' (1), 'test' (1)" in caplog.text


def test_without_a_part_to_validate_that_to_test_validates(products: Path) -> None:
    products.write_text(products.read_text().replace(",valid", ",other").replace(",val", ",other"))
    _, held_out = list_splits(products, columns=COLUMNS, split_column="split")
    assert [record.path.stem for record in held_out.records] == ["3"]


def test_a_column_that_tells_nothing_of_training_is_refused(products: Path) -> None:
    with pytest.raises(InputError, match="no image has a value in a column 'part'"):
        list_splits(products, columns=COLUMNS, split_column="part")
    with pytest.raises(InputError, match="calls no labelled image 'train'; seen: 'cup'"):
        list_splits(products, columns=TableColumns(path="image", label="split"), split_column="class")


@pytest.mark.parametrize("layout", ["empty", "flat", "csv"])
def test_data_without_any_label_is_refused_with_what_is_expected(tmp_path: Path, layout: str) -> None:
    data = tmp_path
    if layout == "flat":
        _save(tmp_path / "1.png")
    elif layout == "csv":
        data = tmp_path / "labels.csv"
        data.write_text("path,label\n1.png,\n")
    with pytest.raises(InputError, match="no labelled image; expected class folders"):
        list_dataset(data)


def test_one_class_only_is_refused_with_the_classes_seen(tmp_path: Path) -> None:
    for number in range(3):
        _save(tmp_path / f"only/{number}.png")
    _save(tmp_path / "lonely/0.png")
    with pytest.raises(InputError, match=r"two classes.*'only' \(3\), 'lonely' \(1\)"):
        check_trainable(list_dataset(tmp_path).records, data=tmp_path)


def test_data_with_no_readable_image_is_refused_before_training(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("not an image")
    with pytest.raises(InputError, match="none of the 4 files is a readable image"):
        check_trainable(list_dataset(tmp_path).records, data=tmp_path)


def test_a_cap_draws_images_of_every_class_by_the_seed_and_keeps_their_order() -> None:
    records = [Record(Path(f"{label}/{number}.png"), label) for label in "abc" for number in range(20)]
    records += [Record(Path("d/0.png"), "d")]
    kept = cap_classes(records, max_per_class=5, seed=0)
    assert Counter(record.label for record in kept) == {"a": 5, "b": 5, "c": 5, "d": 1}
    assert kept == sorted(kept, key=records.index)
    assert kept == cap_classes(records, max_per_class=5, seed=0)
    assert kept != cap_classes(records, max_per_class=5, seed=1)
    assert cap_classes(records, max_per_class=None, seed=0) == records


def test_classes_below_two_images_are_dropped_by_name() -> None:
    keep, dropped = keep_usable_classes(["a", "b", "a", "c", "d", "d"])
    assert keep.tolist() == [True, False, True, False, True, True]
    assert dropped == ["b", "c"]


NAMES = [edit.__name__ for _, edit in EDITS]  # type: ignore[attr-defined]
KEEPS_SIZE = {"mirror", "recolour", "grey", "blur", "shrink", "write", "stamp", "compress"}


def _picture(width: int = 60, height: int = 40) -> Image.Image:
    """Bright to the right, red below: no two places alike."""
    across, down = np.meshgrid(np.linspace(20, 235, width), np.linspace(20, 235, height))
    return Image.fromarray(np.dstack([down, across, 255 - across]).astype(np.uint8))


def _edit(name: str, picture: Image.Image, *, seed: int = 0) -> Image.Image:
    return getattr(transforms, name)(picture, np.random.default_rng(seed))


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (160, 160)])
@pytest.mark.parametrize("name", NAMES)
def test_every_edit_gives_a_picture_of_any_picture(name: str, size: tuple[int, int]) -> None:
    for seed in range(8):
        edited = _edit(name, _picture(*size), seed=seed)
        assert edited.mode == "RGB"
        assert min(edited.size) >= 1
        if name in KEEPS_SIZE:
            assert edited.size == size


@pytest.mark.parametrize("name", NAMES)
def test_every_edit_changes_the_picture_and_leaves_the_original(name: str) -> None:
    picture = _picture()
    before = picture.tobytes()
    changed = [_edit(name, picture, seed=seed) for seed in range(4)]
    assert picture.tobytes() == before
    assert any(edited.size != picture.size or edited.tobytes() != before for edited in changed)


def test_a_cut_keeps_at_least_its_share() -> None:
    areas = [np.prod(_edit("cut", _picture(), seed=seed).size) / (60 * 40) for seed in range(200)]
    assert 0.28 < min(areas) < 0.4
    assert max(areas) > 0.9


def test_a_frame_has_the_whole_picture_in_it() -> None:
    picture = _picture()
    framed = np.asarray(_edit("frame", picture, seed=3))
    windows = np.lib.stride_tricks.sliding_window_view(framed, (40, 60, 3)).reshape(-1, 40, 60, 3)
    assert (windows == np.asarray(picture)).all(axis=(1, 2, 3)).any()


def test_the_generator_alone_decides() -> None:
    picture = _picture()
    first, again, other = (draw_copy(picture, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert (first.size, first.tobytes()) == (again.size, again.tobytes())
    assert (first.size, first.tobytes()) != (other.size, other.tobytes())
