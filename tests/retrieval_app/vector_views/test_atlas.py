"""The Parquet file for embedding-atlas: the page's map, neighbours, thumbnails and vectors."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.insights import map_layout
from retrieval_app.insights.map_layout import lay_out
from retrieval_app.vector_views.atlas import write_atlas
from tests.retrieval_app.vector_views.conftest import VANISHED


@pytest.fixture(scope="module")
def atlas(odd_gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("atlas") / "out.parquet"
    report = write_atlas(odd_gallery.path, out)
    assert (report.images, report.pictures, report.files) == (38, 37, [str(out)])
    return parquet.read_table(out).to_pylist()


def test_members_lie_where_the_page_shows_them(atlas: list[dict[str, Any]], odd_gallery: Gallery) -> None:
    layout = lay_out(odd_gallery)
    assert [row["id"] for row in atlas] == layout.ids.tolist()
    assert [row["x"] for row in atlas] == layout.x.tolist()
    assert [row["y"] for row in atlas] == layout.y.tolist()
    assert all(row["in_map"] for row in atlas)


def test_neighbours_are_rows_of_the_file_nearest_first(atlas: list[dict[str, Any]], odd_gallery: Gallery) -> None:
    vectors = odd_gallery.vectors(odd_gallery.ids).astype(np.float64)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    for number, row in enumerate(atlas):
        found = row["neighbors"]["ids"]
        assert len(found) == 15
        assert number not in found
        np.testing.assert_allclose(row["neighbors"]["distances"], 1 - cosines[number, found], atol=1e-6)
        np.testing.assert_allclose(cosines[number, found], np.sort(cosines[number])[::-1][:15], atol=1e-6)


def test_an_image_is_a_small_file_and_missing_where_it_has_vanished(atlas: list[dict[str, Any]]) -> None:
    for row in atlas:
        if row["path"] == VANISHED:
            assert row["image"] is None
            continue
        with Image.open(io.BytesIO(row["image"]["bytes"])) as image:
            assert max(image.size) <= 96


def test_unmapped_images_lie_amid_nearest(
    odd_gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_layout, "MOST_SHOWN", 25)
    write_atlas(odd_gallery.path, tmp_path / "out.parquet", thumbnails=False)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert "image" not in table.column_names
    rows = table.to_pylist()
    shown = [row for row in rows if row["in_map"]]
    assert (len(rows), len(shown)) == (38, 25)
    vectors, places = np.array([row["vector"] for row in shown]), np.array([(row["x"], row["y"]) for row in shown])
    for row in rows:
        if not row["in_map"]:
            nearest = np.argsort(-(vectors @ np.array(row["vector"])))[:3]
            np.testing.assert_allclose((row["x"], row["y"]), places[nearest].mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("name", ["out.npy", "out"])
def test_another_ending_is_refused_before_any_work(odd_gallery: Gallery, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"expected a name that ends in \.parquet"):
        write_atlas(odd_gallery.path, tmp_path / name)
    assert os.listdir(tmp_path) == []
