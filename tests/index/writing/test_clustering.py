"""`index cluster`: names in the metadata column `cluster`, which updates keep."""

import csv
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.writing.build import build_gallery, update_gallery
from index.writing.clustering import cluster_gallery, name_clusters
from tests.conftest import draw_folder, draw_image


def read_clusters(gallery: Path) -> dict[str, str | None]:
    with Gallery.open(gallery).catalog() as catalog:
        return {row.path: row.metadata.get("cluster") for row in catalog.rows(status="indexed")}


def test_images_get_the_names_of_their_clusters_which_an_update_keeps(tmp_path: Path, tiny_model: Path) -> None:
    images, out = draw_folder(tmp_path / "images", per_class=6), tmp_path / "gallery"
    build_gallery(model_path=tiny_model, sources=[images], out=out)
    report, sizes = cluster_gallery(out, count=3)
    assert (report.changed, report.new_images) == (True, 0)
    found = read_clusters(out)
    assert {path.partition("/")[0] for path, name in found.items() if name == "red"} == {"red"}
    assert sizes == {"blue": 6, "green": 6, "red": 6}
    opened = Gallery.open(out)
    with opened.catalog() as catalog:
        assert len(catalog.matching_ids(parse_filter("cluster = 'red'"))) == 6
    draw_image((200, 30, 40), seed=77).save(images / "red" / "later.png")
    update_gallery(out)
    assert read_clusters(out) == {**found, "red/later.png": None}
    more, sizes = cluster_gallery(out, count=1)
    assert more.changed
    assert sum(sizes.values()) == 19
    same, _ = cluster_gallery(out, count=1)
    assert not same.changed


def test_density_finds_the_number_itself(tmp_path: Path, tiny_model: Path) -> None:
    build_gallery(
        model_path=tiny_model, sources=[draw_folder(tmp_path / "images", per_class=8)], out=tmp_path / "gallery"
    )
    _, sizes = cluster_gallery(tmp_path / "gallery", method="hdbscan")
    assert set(sizes) == {"blue", "green", "red"}
    with pytest.raises(InputError, match="finds the number"):
        cluster_gallery(tmp_path / "gallery", method="hdbscan", count=2)


def test_a_column_of_that_name_is_never_replaced(tmp_path: Path, tiny_model: Path) -> None:
    draw_folder(tmp_path / "images", per_class=2)
    table = tmp_path / "images" / "images.csv"
    with table.open("w", newline="") as file:
        paths = sorted((tmp_path / "images").glob("*/*.*"))
        csv.writer(file).writerows([("path", "cluster"), *((path.relative_to(table.parent), "mine") for path in paths)])
    build_gallery(model_path=tiny_model, sources=[table], out=tmp_path / "gallery")
    with pytest.raises(InputError, match="metadata called cluster of their own; rename that column"):
        cluster_gallery(tmp_path / "gallery")
    assert set(read_clusters(tmp_path / "gallery").values()) == {"mine"}


def test_names_are_labels_numbered_where_they_repeat_and_never_another_label() -> None:
    clusters = np.array([0, 0, 0, 1, 1, 2, -1])
    assert name_clusters(clusters, ["a", "a", "a 2", "a", None, None, "b"]) == {0: "a", 1: "a 3", 2: "cluster 3"}
