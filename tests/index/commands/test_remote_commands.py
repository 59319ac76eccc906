"""The commands with addresses in the place of paths."""

import json
import re
from pathlib import Path

import pytest

from index.commands import index_group as cli
from index.commands.search_command import search
from tests.index.galleries import invoke, rows
from tests.remote_servers import FileServer


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path, image_folder: Path, buckets: FileServer) -> Path:
    """Of a bucket with fifteen images."""
    for file in image_folder.rglob("*.*"):
        buckets.files[f"/bucket/photos/{file.relative_to(image_folder)}"] = file.read_bytes()
    words = ("build", tiny_model, "s3://bucket/photos", "--out", tmp_path / "g", "--batch-size", 4)
    assert invoke(cli.index_group, *words).exit_code == 0
    return tmp_path / "g"


def test_a_gallery_of_a_bucket_is_searched_listed_and_changed_by_addresses(gallery: Path) -> None:
    found = invoke(search, gallery, "s3://bucket/photos/red/1.png", "-k", 1)
    assert re.search(r"1 +1\.0000 +red +red/1\.png", found.stdout)
    several = invoke(search, gallery, "s3://bucket/photos/red", "-k", 1)
    assert "s3://bucket/photos/red/4.jpg" in several.stdout
    assert "remote s3://bucket/photos: 15 images" in invoke(cli.index_group, "info", gallery).stdout
    for named in ("s3://bucket/photos/red/1.png", "s3://bucket/photos/blue", "s3://bucket/photos/green/*.jpg"):
        assert invoke(cli.index_group, "remove", gallery, named).exit_code == 0
    assert len([row for row in rows(gallery) if row.status == "indexed"]) == 15 - 1 - 5 - 3
    assert invoke(cli.index_group, "add", gallery, "s3://bucket/photos/blue").exit_code == 0
    assert len([row for row in rows(gallery) if row.status == "indexed"]) == 15 - 1 - 3


def test_a_bucket_that_was_moved_is_named_with_root(gallery: Path, buckets: FileServer) -> None:
    for name, data in list(buckets.files.items()):
        buckets.files[name.replace("/bucket/photos", "/new/place")] = data
    done = invoke(cli.index_group, "update", gallery, "--root", "s3://bucket/photos=s3://new/place", "--json")
    assert json.loads(done.stdout)["new_images"] == 0
    assert "remote s3://new/place" in invoke(cli.index_group, "info", gallery).stdout


def test_options_name_columns_of_lists(tmp_path: Path, tiny_model: Path, image_folder: Path, web: FileServer) -> None:
    web.files["/1.jpg"] = (image_folder / "red/0.jpg").read_bytes()
    (tmp_path / "t.csv").write_text(f"path,link,kind,note\nx.jpg,{web.address}/1.jpg,shoe,new\n")
    words = ("build", tiny_model, tmp_path / "t.csv", "--out", tmp_path / "g")
    done = invoke(cli.index_group, *words, "--url-column", "link", "--label-column", "kind")
    assert done.exit_code == 0, done.output
    [row] = rows(tmp_path / "g")
    assert (row.path, row.label, row.metadata) == (f"{web.address}/1.jpg", "shoe", {"path": "x.jpg", "note": "new"})
    assert invoke(cli.index_group, "update", tmp_path / "g").exit_code == 0
    both = invoke(cli.index_group, *words, "--url-column", "link", "--path-column", "path")
    assert (both.exit_code, "--url-column (tables of addresses)" in both.stderr) == (2, True)
    wrong = invoke(cli.index_group, *words[:3], "--url-column", "ling", "--out", tmp_path / "h")
    assert "expected a column ling; found path, link, kind, note; did you mean link?" in str(wrong.exception)
    none = invoke(cli.index_group, "build", tiny_model, image_folder, "--url-column", "link", "--out", tmp_path / "h")
    assert (none.exit_code, "go with a .csv or .parquet table" in none.stderr) == (2, True)


def test_only_tables_of_files_name_paths(tmp_path: Path, tiny_model: Path, image_folder: Path, web: FileServer) -> None:
    web.files["/1.jpg"] = (image_folder / "red/0.jpg").read_bytes()
    (tmp_path / "files.csv").write_text(f"image\n{image_folder}/red/1.jpg\n")
    (tmp_path / "urls.csv").write_text(f"url\n{web.address}/1.jpg\n")
    tables = (tmp_path / "files.csv", tmp_path / "urls.csv")
    done = invoke(cli.index_group, "build", tiny_model, *tables, "--path-column", "image", "--out", tmp_path / "g")
    assert done.exit_code == 0, done.output
    assert len(rows(tmp_path / "g")) == 2
