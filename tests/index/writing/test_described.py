"""What image files say of themselves is metadata, by content: a source's own value wins, and nothing is read twice."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from index.commands.index_group import index_group
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.public import build as build_in_python
from index.versions.versions import find_version
from index.writing import pending
from index.writing.build import build_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.copying import cluster_gallery
from tests.described_photos import save_photo
from tests.index.galleries import build, change_manifest, invoke, rows, stopped_at

TAKEN = {"a.jpg": "2021:05:01 10:00:00", "b.jpg": "2023:12:24 18:30:00", "c.jpg": None}
ISO = {"a.jpg": "2021-05-01T10:00:00.34", "b.jpg": "2023-12-24T18:30:00.34", "c.jpg": None}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for seed, (name, taken) in enumerate(TAKEN.items()):
        save_photo(tmp_path / "photos" / name, taken, seed=seed, place=(48, 2.5), word="beach" * (name == "b.jpg"))
    return tmp_path / "photos"


def values(gallery: Path, name: str = "taken") -> dict[str, Any]:
    return {Path(row.path).name: row.metadata.get(name) for row in rows(gallery) if row.status == "indexed"}


def test_files_are_described_through_every_change(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    gallery = tmp_path / "g"
    build(photos, gallery, tiny_model)
    assert values(gallery) == ISO
    assert not {"gps_latitude", "gps_longitude"} & {name for row in rows(gallery) for name in row.metadata}
    cluster_gallery(gallery, count=2)  # which adds metadata of its own
    assert not update_gallery(gallery, thorough=True).changed
    assert not build(photos, gallery, tiny_model).changed
    (photos / "a.jpg").rename(photos / "moved.jpg")
    shutil.copy(photos / "b.jpg", photos / "copy.jpg")
    save_photo(photos / "b.jpg", None, seed=9)
    save_photo(photos / "c.jpg", "2020:01:01 00:00:00", seed=2)
    assert update_gallery(gallery).moved == 1
    changed = {"moved.jpg": ISO["a.jpg"], "copy.jpg": ISO["b.jpg"], "b.jpg": None, "c.jpg": "2020-01-01T00:00:00.34"}
    assert values(gallery) == changed
    assert not update_gallery(gallery).changed
    update_gallery(gallery, skip_if=parse_filter("taken < 2021-01-01"))
    assert "c.jpg" not in values(gallery)


def test_a_value_of_a_table_wins_until_the_table_has_none(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    table, gallery = tmp_path / "t.csv", tmp_path / "g"
    table.write_text("path,taken\nphotos/a.jpg,mine\nphotos/b.jpg,\n")
    build(table, gallery, tiny_model)
    assert values(gallery) == {"a.jpg": "mine", "b.jpg": ISO["b.jpg"]}
    table.write_text("path,camera\nphotos/a.jpg,a Leica\nphotos/b.jpg,\n")
    update_gallery(gallery)
    assert values(gallery) == {"a.jpg": ISO["a.jpg"], "b.jpg": ISO["b.jpg"]}
    assert values(gallery, "camera") == {"a.jpg": "a Leica", "b.jpg": "NIKON D750"}


def test_places_are_kept_where_they_are_asked_for_alone(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    gallery, cache = tmp_path / "g", tmp_path / "cache"
    build_in_python(str(tiny_model), photos, gallery, cache=cache)
    build_in_python(str(tiny_model), photos, tmp_path / "other", gps=True, cache=cache)  # which embeds nothing
    assert values(tmp_path / "other", "gps_longitude") == dict.fromkeys(ISO, 2.5)
    assert values(tmp_path / "other") == ISO
    with stopped_at("writing.pending.end_pass"):
        update_gallery(gallery, gps=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pending, "read_indexed", lambda place: pytest.fail(f"{place.name} is read twice"))
        update_gallery(gallery)
    assert values(gallery, "gps_latitude") == dict.fromkeys(ISO, 48.0)
    assert Gallery.open(gallery).matching_ids(parse_filter("gps_latitude = 48")).size == 3
    hidden = Gallery.open(gallery, shows_gps=False)
    assert {name for row in hidden.rows(hidden.ids) for name in row.metadata} & {"gps_latitude", "camera"} == {"camera"}
    assert invoke(index_group, "update", gallery, "--no-gps", "--no-cache").exit_code == 0
    assert (values(gallery, "gps_latitude"), values(gallery)) == (dict.fromkeys(ISO), ISO)
    catalog = find_version(gallery).folder / "catalog.sqlite"
    assert b"gps_latitude" not in catalog.read_bytes()


def test_a_gallery_of_an_older_program_is_described_on_demand(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    gallery = tmp_path / "g"
    build(photos, gallery, tiny_model)
    with closing(sqlite3.connect(find_version(gallery).folder / "catalog.sqlite")) as old:
        old.executescript(
            "DROP TABLE facts; DELETE FROM settings WHERE name = 'facts'; UPDATE images SET metadata = NULL"
        )
    change_manifest(gallery)
    assert not update_gallery(gallery).changed
    (photos / "c.jpg").unlink()
    assert invoke(index_group, "update", gallery, "--describe", "--no-cache").exit_code == 0
    assert values(gallery) == {"a.jpg": ISO["a.jpg"], "b.jpg": ISO["b.jpg"]}
    assert not update_gallery(gallery).changed


def test_shards_have_what_their_images_say(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    gallery = tmp_path / "g"
    for part in ("1/2", "2/2"):
        assert invoke(index_group, "build", tiny_model, photos, "--out", gallery, "--shard", part).exit_code == 0
    assert invoke(index_group, "merge", gallery).exit_code == 0
    assert values(gallery) == ISO


def test_a_list_is_sorted_page_by_page_and_found_by_words(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    gallery = tmp_path / "g"
    build_gallery(model_path=tiny_model, sources=[photos], out=gallery, config=BuildConfig(workers=1))

    def page(*options: object) -> tuple[list[str], int | None]:
        listed = json.loads(invoke(index_group, "list", gallery, "--json", *options).stdout)
        return [item["path"] for item in listed["items"]], listed["next_after"]

    first, after = page("--sort=-taken", "--limit", 2)
    assert (first, page("--sort=-taken", "--after", after)) == (["b.jpg", "a.jpg"], (["c.jpg"], None))
    assert page("--sort", "taken")[0] == ["a.jpg", "b.jpg", "c.jpg"]
    assert page("--sort", "path", "--where", "taken >= 2023-01-01")[0] == ["b.jpg"]
    for options in (("--sort", "takn"), ("--sort", "taken", "--after", 999)):
        assert invoke(index_group, "list", gallery, *options).exit_code == 1
    assert [hit.path for hit in Gallery.open(gallery).search("beach")] == ["b.jpg"]
