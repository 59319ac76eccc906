"""Parquet files with images in their cells, as Hugging Face `datasets` writes them."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from index.errors import ImageError, InputError
from index.items import FoundItem
from index.sources.reading import read_place
from index.sources.registry import find_source
from tests.conftest import draw_image
from tests.index.hostile import encode

PNG = encode(draw_image((9, 90, 200), seed=1), "PNG")
FEATURES = b"""{"info": {"features": {"image": {"_type": "Image"}, "audio": {"_type": "Audio"},
"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}"""


def write_parquet(file: Path, columns: dict[str, Any], *, features: bytes | None = None, **options: Any) -> Path:
    table = pyarrow.table(columns)
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(
        table if features is None else table.replace_schema_metadata({"huggingface": features}), file, **options
    )
    return file


def cell(data: bytes | None, path: str | None = None) -> dict[str, Any]:
    return {"bytes": data, "path": path}


def read_all(text: str | Path) -> list[tuple[FoundItem, bytes | None]]:
    source = find_source(str(text))
    return [
        (item, read_place(source.locate(item), check=lambda *_, **__: None) if item.problem is None else None)
        for item in source.scan()
    ]


def test_every_cell_is_read_in_order_whatever_it_holds(tmp_path: Path) -> None:
    data = [b"", PNG, b"\x1f\x8b no gzip", PNG, None, PNG[:40]]
    columns = {"image": [cell(one) for one in data], "price": [1.5, None, 3.0, 4.0, 5.0, 6.0]}
    file = write_parquet(tmp_path / "x.parquet", columns)
    found = read_all(file)
    assert [read for _, read in found] == data
    assert [item.path for item, _ in found][1:3] == [f"{file.name}/0000002.png", f"{file.name}/0000003.bin"]
    assert [item.metadata for item, _ in found[:2]] == [{"price": 1.5}, None]
    assert found[4][0].problem is not None


def test_names_of_classes_and_splits_come_from_the_file(tmp_path: Path) -> None:
    columns = {"audio": [cell(b"RIFF")] * 3, "image": [cell(PNG, "/home/me/a.png")] * 3, "label": [1, -1, 0]}
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", columns, features=FEATURES)
    items = [item for item, _ in read_all(tmp_path)]
    assert [item.label for item in items] == ["dog", None, "cat"]
    assert {item.path.partition(".parquet/")[2] for item in items} == {
        "home/me/a.png",
        *(f"home/me/a.png#{n}" for n in (2, 3)),
    }
    assert all(item.metadata == {"split": "train"} for item in items)


def test_the_column_of_labels_can_be_named(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", {"jpg": [PNG, PNG], "kind": ["cat", ""], "boxes": [[1], [2]]})
    assert [item.label for item, _ in read_all(f"{file}#label=kind")] == ["cat", None]
    with pytest.raises(InputError, match="expected a column colour of labels; found jpg, kind, boxes"):
        read_all(f"{file}#label=colour")
    with pytest.raises(InputError, match="expected labels that are text or numbers, found list"):
        read_all(f"{file}#label=boxes")


def test_a_table_that_names_files_stays_a_table(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", {"path": ["a.png"], "image": [cell(PNG)]})
    assert find_source(str(file)).kind == "table"
    assert (
        find_source(str(write_parquet(tmp_path / "y.parquet", {"url": ["http://h/1"], "jpg": [PNG]}))).kind == "cells"
    )


def test_repeated_images_of_a_small_file_have_a_place_each(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", {"image": [cell(bytes(100_000))] * 300})
    assert file.stat().st_size < 200_000
    assert [item.starts_at for item in find_source(str(file)).scan()] == [8 + 100_000 * row for row in range(300)]


@pytest.mark.parametrize("damage", [0.3, 0.6, 0.95])
def test_a_damaged_file_is_one_item_with_a_reason(tmp_path: Path, damage: float) -> None:
    file = write_parquet(tmp_path / "x.parquet", {"image": [cell(os.urandom(3000)) for _ in range(9)]})
    source, whole = find_source(str(file)), file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * damage)])
    items = list(source.scan())
    problem = items[-1].problem
    assert problem.reason == "corrupt-archive"
    assert all(item.problem is None for item in items[:-1])


def test_wrong_bytes_anywhere_are_found_or_harmless(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", {"image": [cell(bytes(99))] * 9, "label": ["a", "b", "c"] * 3})
    source, whole, random = find_source(str(file)), file.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        damaged = np.frombuffer(whole, dtype=np.uint8).copy()
        damaged[random.integers(0, len(whole), 3)] = random.integers(0, 256, 3)
        file.write_bytes(damaged)
        with suppress(InputError):
            list(source.scan())


def test_few_bytes_that_unpack_to_very_many_are_refused_unread(tmp_path: Path) -> None:
    data = [cell(bytes(80_000_000)), *[cell(PNG)] * 9]
    file = write_parquet(tmp_path / "x.parquet", {"image": data}, compression="zstd")
    ((item, _),) = read_all(file)
    assert re.search(r"after 0 rows: row group 1 unpacks \d+ bytes to 80", str(item.problem))


def test_a_changed_parquet_file_is_not_read_by_old_places(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", {"image": [cell(PNG)]})
    source = find_source(str(file))
    (item,) = source.scan()
    os.utime(file, ns=(1, 1))
    with pytest.raises(ImageError, match="changed"):
        read_place(source.locate(item))


@pytest.mark.slow
def test_a_cell_of_150_megabytes_beside_small_ones(tmp_path: Path) -> None:
    data = [PNG, os.urandom(150_000_000), PNG]
    file = write_parquet(tmp_path / "x.parquet", {"image": [cell(one) for one in data]}, row_group_size=3)
    assert [read for _, read in read_all(file)] == data


@pytest.mark.slow
def test_datasets_saved_by_hugging_face_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images = [draw_image((20, 90, 200), seed=seed) for seed in range(6)]
    features = {
        "image": datasets.Image(),
        "fine": datasets.ClassLabel(names=["cat", "dog"]),
        "age": datasets.Value("int32"),
    }
    saved = datasets.Dataset.from_dict(
        {"image": images, "fine": [0, 1, None, 1, 0, 1], "age": range(6)}, features=datasets.Features(features)
    )
    saved.to_parquet(str(tmp_path / "train-00000-of-00001.parquet"))
    found = read_all(tmp_path)
    assert [read for _, read in found] == [
        image["bytes"] for image in saved.cast_column("image", datasets.Image(decode=False))["image"]
    ]
    assert [item.label for item, _ in found] == ["cat", "dog", None, "dog", "cat", "dog"]
    assert found[0][0].metadata == {"split": "train", "age": 0}
