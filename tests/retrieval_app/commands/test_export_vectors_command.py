"""`retrieval index export-vectors` as people and programs call it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.commands.export_vectors_command import export_vectors
from tests.index.invoking import invoke, run


def test_vectors_are_written_where_they_are_wanted(small_gallery: Path, gallery: Gallery, tmp_path: Path) -> None:
    out, shape = tmp_path / "v.npy", (gallery.count, gallery.width)
    assert run(export_vectors, small_gallery, "--out", out) == [
        f"{tmp_path}/v.npy and {tmp_path}/v.csv: {shape[0]} images, {shape[1]} numbers each"
    ]
    assert np.load(out).shape == shape
    assert isinstance(invoke(export_vectors, small_gallery, "--out", out).exception, InputError)
    document = json.loads("".join(run(export_vectors, small_gallery, "--out", tmp_path / "v.parquet", "--json")))
    assert document["files"] == [f"{tmp_path}/v.parquet"]
    assert sorted(os.listdir(tmp_path)) == ["v.csv", "v.npy", "v.parquet"]
    assert invoke(export_vectors, small_gallery).exit_code == 2


@pytest.mark.parametrize(
    ("kind", "name", "look"),
    [
        ("projector", "folder", "look: tensorboard --logdir {out}"),
        ("atlas", "a.parquet", "look: embedding-atlas {out} --x x --y y --neighbors neighbors --image image"),
    ],
)
def test_the_output_names_its_viewer(
    small_gallery: Path, gallery: Gallery, tmp_path: Path, kind: str, name: str, look: str
) -> None:
    out, there = tmp_path / name, gallery.count - 1  # one has vanished
    assert run(export_vectors, small_gallery, "--as", kind, "--out", out) == [
        f"{out}: {gallery.count} images, {gallery.width} numbers each, {there} thumbnails", look.format(out=out),
    ]  # fmt: skip
    other = tmp_path / f"other-{name}"
    told = run(export_vectors, small_gallery, "--as", kind, "--out", other, "--no-thumbnails", "--json")
    document = json.loads("".join(told))
    assert (document["images"], document["pictures"]) == (gallery.count, 0)
    assert all(Path(file).exists() for file in document["files"])
