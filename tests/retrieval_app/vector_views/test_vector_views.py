"""The file for embedding-atlas."""

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
from index.writing.build import build_gallery
from retrieval_app.insights.map_layout import lay_out
from retrieval_app.vector_views import write_atlas
from tests.conftest import draw_folder, draw_image

ODD_NAME = os.fsdecode(b"caf\xe9\ttab.png")
VANISHED = "red/vanished.png"


@pytest.fixture(scope="module")
def odd_gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Thirty-eight members, one without a label; not to be written to."""
    folder = tmp_path_factory.mktemp("views")
    images = draw_folder(folder / "images", per_class=12)
    draw_image((1, 2, 3), seed=0).save(images / ODD_NAME)
    draw_image((220, 40, 40), seed=77).save(images / VANISHED)
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "gallery")
    (images / VANISHED).unlink()
    return Gallery.open(folder / "gallery")


@pytest.fixture(scope="module")
def atlas(odd_gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("atlas") / "out.parquet"
    report = write_atlas(odd_gallery.path, out)
    assert (report.images, report.thumbnails, report.files) == (38, 37, [str(out)])
    return parquet.read_table(out).to_pylist()


def test_members_lie_where_the_page_shows_them(atlas: list[dict[str, Any]], odd_gallery: Gallery) -> None:
    layout = lay_out(odd_gallery)
    assert [row["id"] for row in atlas] == layout.ids
    assert [row["x"] for row in atlas] == layout.x
    assert [row["y"] for row in atlas] == layout.y
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


def test_nothing_is_left_of_what_is_interrupted(odd_gallery: Gallery, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atlas(odd_gallery.path, tmp_path / "out.parquet", writing=stop)
    assert os.listdir(tmp_path) == []


def test_what_is_in_the_way_stays(odd_gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_atlas(odd_gallery.path, tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").read_text() == "mine"
    with pytest.raises(InputError, match="a gallery holds nothing but its own files"):
        write_atlas(odd_gallery.path, odd_gallery.path / "out.parquet")
