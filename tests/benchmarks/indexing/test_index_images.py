"""The images that the benchmark of indexing makes."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.indexing.index_images import (
    list_images,
    make_large_images,
    make_small_images,
    sample_photos,
    take_evenly,
)
from tests.conftest import draw_image


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A tar file of three small images in two label folders."""
    path = tmp_path / "small.tar"
    with tarfile.open(path, "w") as tar:
        for number, label in enumerate(("a", "a", "b")):
            image = tmp_path / f"{number}.jpg"
            draw_image((60, 90, 200), seed=number, size=(64, 64)).save(image)
            tar.add(image, f"{label}/{number}.JPEG")
    return path


def test_shards_hold_pairs_of_image_and_label_and_no_image_twice(archive: Path, tmp_path: Path) -> None:
    options = {"count": 14, "shard_images": 6, "seed": 0}
    shards = make_small_images([archive], tmp_path / "shards", **options)
    names, digests, labels = [], set(), []
    for shard in shards:
        with tarfile.open(shard) as tar:
            for member in tar:
                data = tar.extractfile(member).read()
                names.append(member.name)
                if member.name.endswith(".json"):
                    labels.append(json.loads(data)["label"])
                else:
                    digests.add(hashlib.sha256(data).digest())
    assert [len(names), len(digests), len(shards)] == [28, 14, 3]
    assert names[:3] == ["000000000.jpg", "000000000.json", "000000001.jpg"]
    assert labels[:4] == ["a", "a", "b", "a"]
    again = make_small_images([archive], tmp_path / "again", **options)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in shards]


def test_small_images_in_folders_are_those_of_the_shards(archive: Path, tmp_path: Path) -> None:
    options = {"count": 5, "shard_images": 3, "seed": 1}
    make_small_images([archive], tmp_path / "folders", **options, in_tars=False)
    shards = make_small_images([archive], tmp_path / "tars", **options)
    members = {}
    for shard in shards:
        with tarfile.open(shard) as tar:
            members |= {m.name: tar.extractfile(m).read() for m in tar if m.name.endswith(".jpg")}
    assert {path.name: path.read_bytes() for path in list_images(tmp_path / "folders")} == members


def test_large_images_are_mosaics_that_are_made_once(image_folder: Path, tmp_path: Path) -> None:
    make_large_images(image_folder, tmp_path / "large", count=2, seed=0, tile_side=50)
    paths = list_images(tmp_path / "large")
    before = [path.read_bytes() for path in paths]
    assert before[0] != before[1]
    with Image.open(paths[0]) as image:
        assert image.size == (200, 150)
        assert image.format == "JPEG"
    paths[1].unlink()
    os.utime(paths[0], ns=(0, 0))
    make_large_images(image_folder, tmp_path / "large", count=2, seed=0, tile_side=50)
    assert [path.read_bytes() for path in paths] == before
    assert paths[0].stat().st_mtime_ns == 0


def test_a_sample_of_photos_is_spread_over_their_folders(image_folder: Path, tmp_path: Path) -> None:
    sample = sample_photos(image_folder, tmp_path / "sample", count=6)
    assert sorted(path.parent.name for path in list_images(sample)) == [
        "blue", "blue", "green", "green", "red", "red"
    ]  # fmt: skip
    assert len(take_evenly(list_images(image_folder), 100)) == 15
