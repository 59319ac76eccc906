"""The files for embedding-atlas and for the Embedding Projector, as TensorBoard's own plugin reads it."""

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
from retrieval_app import vector_views
from retrieval_app.insights.map_layout import lay_out
from retrieval_app.vector_views import write_atlas, write_projector
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


def ask_plugin(folder: Path, route: str, **asked: str) -> Any:
    """What the projector of `tensorboard --logdir folder` is answered."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
    from werkzeug.test import Client

    provider = MultiplexerDataProvider(EventMultiplexer(), str(folder))
    plugin = ProjectorPlugin(TBContext(logdir=str(folder), data_provider=provider))
    answer = Client(plugin.get_plugin_apps()[route]).get(query_string={"run": ".", **asked})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture(scope="module")
def projector(odd_gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("projector") / "out"
    report = write_projector(odd_gallery.path, out)
    assert (report.images, report.thumbnails) == (38, 37)
    assert sorted(report.files) == sorted(str(path) for path in out.iterdir())
    return out


def test_the_plugin_finds_the_sprite_and_the_vectors(projector: Path, odd_gallery: Gallery) -> None:
    assert ask_plugin(projector, "/runs").json == ["."]
    (embedding,) = ask_plugin(projector, "/info").json["embeddings"]
    assert embedding["tensorShape"] == [38, odd_gallery.width]
    assert embedding["sprite"] == {"imagePath": "sprite.png", "singleImageDim": [64, 64]}
    served = np.frombuffer(ask_plugin(projector, "/tensor", name="gallery").data, dtype="<f4")
    stored = odd_gallery.vectors(odd_gallery.ids)
    np.testing.assert_allclose(served.reshape(stored.shape), stored, rtol=1e-6)


def test_the_sprite_has_every_members_picture_in_its_place(projector: Path, odd_gallery: Gallery) -> None:
    sprite = Image.open(io.BytesIO(ask_plugin(projector, "/sprite_image", name="gallery").data))
    across = 7  # 38 of 49
    assert sprite.size == (across * 64, across * 64)
    for number, row in enumerate(odd_gallery.rows(odd_gallery.ids.tolist())):
        middle = sprite.getpixel((number % across * 64 + 32, number // across * 64 + 32))
        shown = {"red": 0, "green": 1, "blue": 2}
        if row.path == VANISHED:
            assert middle == (200, 200, 200)
        elif row.label:
            assert int(np.argmax(middle)) == shown[row.label], row.path


def test_nothing_is_left_of_what_is_interrupted(odd_gallery: Gallery, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_projector(odd_gallery.path, tmp_path / "out", progress=stop)
    assert os.listdir(tmp_path) == []


def test_what_is_in_the_way_stays(odd_gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_projector(odd_gallery.path, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["mine"]
    with pytest.raises(InputError, match="a gallery holds nothing but its own files"):
        write_projector(odd_gallery.path, odd_gallery.path / "out")


def test_a_folder_that_cannot_be_made_is_named(
    odd_gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_views, "check_out", lambda *_, **__: (tmp_path / "out").mkdir())  # made meanwhile
    with pytest.raises(InputError, match=r"out: cannot be made: File exists$"):
        write_projector(odd_gallery.path, tmp_path / "out")
    assert (tmp_path / "out").is_dir()
