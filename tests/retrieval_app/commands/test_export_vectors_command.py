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
    document = json.loads("".join(run(export_vectors, small_gallery, "--out", tmp_path / "w.npy", "--json")))
    assert document["files"] == [f"{tmp_path}/w.npy", f"{tmp_path}/w.csv"]
    assert sorted(os.listdir(tmp_path)) == ["v.csv", "v.npy", "w.csv", "w.npy"]
    assert invoke(export_vectors, small_gallery).exit_code == 2
