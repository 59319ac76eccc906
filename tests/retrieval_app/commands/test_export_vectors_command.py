"""`retrieval index export-vectors` as people and programs call it."""

import json
import os
from pathlib import Path

import numpy as np

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.commands.export_vectors_command import export_vectors
from tests.index.galleries import invoke, run


def test_vectors_are_written_where_they_are_wanted(small_gallery: Path, gallery: Gallery, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    run(export_vectors, small_gallery, "--out", out)
    assert np.load(out).shape == (gallery.count, gallery.width)
    assert isinstance(invoke(export_vectors, small_gallery, "--out", out).exception, InputError)
    document = json.loads("".join(run(export_vectors, small_gallery, "--out", tmp_path / "v.parquet", "--json")))
    assert document["files"] == [f"{tmp_path}/v.parquet"]
    assert sorted(os.listdir(tmp_path)) == ["v.csv", "v.npy", "v.parquet"]
    assert invoke(export_vectors, small_gallery).exit_code == 2


def test_a_file_for_a_viewer_is_written_and_the_viewer_named(small_gallery: Path, tmp_path: Path) -> None:
    told = run(export_vectors, small_gallery, "--as", "atlas", "--out", tmp_path / "a.parquet")
    assert "view: embedding-atlas " in told[1]
    words = ("--as", "atlas", "--out", tmp_path / "other.parquet", "--no-thumbnails", "--json")
    document = json.loads("".join(run(export_vectors, small_gallery, *words)))
    assert document["thumbnails"] == 0
    assert document["files"] == [str(tmp_path / "other.parquet")]
