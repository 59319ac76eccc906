import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from index.errors import GalleryError, InputError
from index.gallery.export_vectors import CSV_COLUMNS, export_vectors
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.writing.build import add_to_gallery, remove_from_gallery
from tests.conftest import draw_folder, draw_image, room_for
from tests.index.galleries import SMALL, build, rows
from tests.models import EMBEDDING_DIM


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Two sources, vectors in two shards, some deleted, one label that CSV must quote, one image with metadata."""
    folder = tmp_path_factory.mktemp("export")
    images = draw_folder(folder / "images")
    (images / 'a,"b').mkdir()
    draw_image((1, 2, 3), seed=0).save(images / 'a,"b' / "1.png")
    draw_image((3, 2, 1), seed=0).save(os.path.join(images, os.fsdecode(b"caf\xe9.png")))
    build(images, folder / "g", tiny_model)
    draw_image((9, 9, 9), seed=1).save(folder / "added.png")
    (folder / "more.csv").write_text("path,label,price\nadded.png,new,12.5\n")
    add_to_gallery(folder / "g", [folder / "more.csv"], config=SMALL)
    remove_from_gallery(folder / "g", selection=Selection(patterns=("red/0.jpg", "blue/*")), config=SMALL)
    opened = Gallery.open(folder / "g")
    assert (len(opened.store._shards), opened.count, opened.manifest.counts["deleted"]) == (2, 12, 6)
    return folder / "g"


def stored_vectors(gallery: Path) -> np.ndarray:
    opened = Gallery.open(gallery)
    return np.stack([opened.vector(int(key)) for key in opened.ids])


@pytest.mark.parametrize("rows_at_once", [4096, 3])
def test_an_array_has_every_member_in_id_order_beside_a_table(
    gallery: Path, tmp_path: Path, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.vectors.files._ROWS_AT_ONCE", rows_at_once)
    report = export_vectors(gallery, tmp_path / "v.npy")
    array = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert array.dtype == np.float32
    assert np.array_equal(array, stored_vectors(gallery))
    with (tmp_path / "v.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == CSV_COLUMNS
    indexed = [row for row in rows(gallery) if row.status == "indexed"]
    assert [(int(row["row"]), int(row["id"])) for row in table] == list(enumerate(row.id for row in indexed))
    assert [row["label"] for row in table] == [row.label or "" for row in indexed]
    shown = {row["path"]: row for row in table}
    assert shown['a,"b/1.png']["label"] == 'a,"b'
    assert shown["caf\\xe9.png"]["label"] == shown["caf\\xe9.png"]["metadata"] == ""
    assert json.loads(shown["added.png"]["metadata"]) == {"price": 12.5}
    assert shown["added.png"]["source"] == str(gallery.parent)
    assert shown["caf\\xe9.png"]["source"] == str(gallery.parent / "images")
    assert (report.images, report.embedding_dim) == (12, EMBEDDING_DIM)
    assert sorted(os.listdir(tmp_path)) == ["v.csv", "v.npy"]


def test_what_is_interrupted_or_does_not_fit_leaves_nothing(gallery: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_vectors(gallery, tmp_path / "v.npy", progress=stop)
    assert os.listdir(tmp_path) == []
    with room_for(256), pytest.raises(InputError, match=r"v\.npy: cannot be written: .*large"):
        export_vectors(gallery, tmp_path / "v.npy")
    assert os.listdir(tmp_path) == []


def test_a_name_that_cannot_be_written_is_refused_before_any_work(gallery: Path, tmp_path: Path) -> None:
    (tmp_path / "taken.csv").write_text("mine")
    (tmp_path / "link").symlink_to(gallery)
    for out, problem in (
        ("v", "ends in .npy"),
        ("none/v.npy", "there is no folder"),
        ("taken.npy", "taken.csv: exists already"),
        ("link/v.npy", "give an --out outside it"),
    ):
        with pytest.raises(InputError, match=problem):
            export_vectors(gallery, tmp_path / out)
    with pytest.raises(InputError, match="give an --out outside it"):
        export_vectors(gallery, gallery / "versions" / "v.npy")
    assert (tmp_path / "taken.csv").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["link", "taken.csv"]
    with pytest.raises(GalleryError, match="no such gallery"):
        export_vectors(tmp_path / "none", tmp_path / "v.npy")
