"""Galleries of what lies on a network: built, stopped and gone on with, brought up to date, looked after."""

import json
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.paths import user_cache
from index.sources.reading import read_indexed
from index.writing import pending
from index.writing.build import build_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.tidy import plan_moves
from tests.conftest import draw_image
from tests.index.galleries import ROOT, SMALL, build, rows, vectors
from tests.index.hostile import encode
from tests.index.sources.test_shards import pack_plain
from tests.remote_servers import Fault, FileServer

TOLD = attrgetter("label", "metadata", "sha256", "phash", "measures", "status", "reason")


def upload(folder: Path, server: FileServer, below: str = "/bucket/photos") -> None:
    """A folder as it would be copied into a bucket."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            server.files[f"{below}/{file.relative_to(folder)}"] = file.read_bytes()


def by_path(gallery: Path) -> dict[str, tuple[object, ...]]:
    """What a gallery knows of every image, its vector included."""
    held = vectors(gallery)
    return {row.path: (*TOLD(row), held.get(row.id)) for row in rows(gallery)}


def list_urls(server: FileServer, folder: Path, image_folder: Path) -> Path:
    """A list of a folder's images on a server, with labels and captions."""
    upload(image_folder, server, "")
    lines = [
        json.dumps({"url": f"{server.address}{path}", "label": path.split("/")[1], "caption": path})
        for path in sorted(server.files)
    ]
    (folder / "urls.jsonl").write_text("\n".join(lines))
    return folder / "urls.jsonl"


@pytest.fixture
def mixed(image_folder: Path) -> Path:
    """A folder of images, of which one is broken, and of two shards."""
    (image_folder / "red/broken.jpg").write_bytes(b"<html>")
    (image_folder / "shards").mkdir()
    (image_folder / "shards/0.tar").write_bytes(pack_plain(3))
    return image_folder


def test_a_gallery_of_a_bucket_is_that_of_the_same_folder(
    tmp_path: Path, tiny_model: Path, mixed: Path, buckets: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(mixed, buckets)
    build(mixed, tmp_path / "here", tiny_model)
    monkeypatch.setattr("index.sources.reading._LARGE_BYTES", 4000)  # larger ones are left to who has room
    report = build("s3://bucket/photos", tmp_path / "there", tiny_model)
    assert (report.indexed, report.skipped_by_reason) == (18, {"not-an-image": 1})
    assert {number for (method, _), number in buckets.asked.items() if method != "LIST"} == {1}
    assert by_path(tmp_path / "there") == by_path(tmp_path / "here")
    moves = plan_moves(Gallery.open(tmp_path / "there"), {row.id: () for row in rows(tmp_path / "there")[:1]})
    assert moves.reasons == {"it is at an address, not on this machine": 1}


def test_an_update_fetches_changes_only(tmp_path: Path, tiny_model: Path, mixed: Path, buckets: FileServer) -> None:
    upload(mixed, buckets)
    build("s3://bucket/photos", tmp_path / "g", tiny_model)
    for file in (user_cache() / "shards").iterdir():
        file.unlink()
    ids = {row.path: row.id for row in rows(tmp_path / "g")}
    buckets.asked.clear()
    assert not update_gallery(tmp_path / "g", config=SMALL).changed
    assert {path for method, path in buckets.asked if method != "LIST"} == {"/bucket/photos/red/broken.jpg"}
    buckets.files["/bucket/photos/red/1.png"] = encode(draw_image((9, 9, 9), seed=99), "PNG")
    buckets.files["/bucket/photos/red/new.png"] = encode(draw_image((9, 99, 9), seed=98), "PNG")
    del buckets.files["/bucket/photos/red/2.jpg"]
    buckets.asked.clear()
    report = update_gallery(tmp_path / "g", config=SMALL)
    assert (report.new_images, report.vanished, report.indexed) == (2, 1, 18)
    fetched = {path.rpartition("/")[2] for method, path in buckets.asked if method != "LIST"}
    assert fetched == {"1.png", "new.png", "broken.jpg"}
    now = {row.path: row.id for row in rows(tmp_path / "g")}
    assert {path for path in now if now[path] != ids.get(path)} == {"red/1.png", "red/new.png"}


def test_a_gallery_of_a_list(tmp_path: Path, tiny_model: Path, image_folder: Path, web: FileServer) -> None:
    urls = list_urls(web, tmp_path, image_folder)
    del web.files["/red/0.jpg"]
    web.files["/red/1.png"] = b"<html>no image</html>"
    web.faults["/blue/0.jpg"] = [Fault(500), Fault(429, {"Retry-After": "0"})]
    web.faults["/blue/1.png"] = [Fault(503)] * 99
    with urls.open("a") as file:
        file.write('\n{"url": "http://10.1.2.3/x.png", "label": "x"}')
    report = build(urls, tmp_path / "g", tiny_model)
    assert (report.found, report.indexed) == (16, 12)
    assert report.skipped_by_reason == {"not-an-image": 1, "not-found": 1, "refused-address": 1, "unreachable": 1}
    row = next(row for row in rows(tmp_path / "g") if row.path.endswith("/blue/0.jpg"))
    assert (row.label, row.metadata, row.status) == ("blue", {"caption": "/blue/0.jpg"}, "indexed")
    assert row.size_bytes == len(web.files["/blue/0.jpg"])
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.search(gallery.vector(row.id), k=1)[0].location == row.path
    assert read_indexed(gallery.place(row.id)) == web.files["/blue/0.jpg"]


def test_a_build_that_was_stopped_goes_on_without_fetching_anything_twice(
    tmp_path: Path, tiny_model: Path, image_folder: Path, web: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = list_urls(web, tmp_path, image_folder)
    web.faults["/blue/0.jpg"] = [Fault(404)]
    config = BuildConfig(batch_size=1, workers=1, checkpoint_images=2)
    real, saved = pending.write_checkpoint, []

    def fail_late(*args: object) -> object:
        saved.append(args)
        if len(saved) == 4:
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(pending, "write_checkpoint", fail_late)
    with pytest.raises(Exception, match="what is done is kept"):
        build_gallery(model_path=tiny_model, sources=[urls], out=tmp_path / "g", config=config)
    monkeypatch.setattr(pending, "write_checkpoint", real)
    web.asked.clear()
    report = build_gallery(model_path=tiny_model, sources=[urls], out=tmp_path / "g", config=config)
    assert (report.indexed, report.skipped, report.new_images) == (14, 1, 9)
    assert (web.count("GET"), web.count("HEAD")) == (9, 0)


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [4, 11])
def test_a_build_of_a_bucket_that_was_killed_ends_as_the_same_gallery(
    tmp_path: Path, tiny_model: Path, mixed: Path, buckets: FileServer, stop_after: int
) -> None:
    upload(mixed, buckets)
    build("s3://bucket/photos", tmp_path / "whole", tiny_model)
    script = (
        "import os, sys; from pathlib import Path; from index.writing.build import build_gallery; "
        "from index.writing.build_config import BuildConfig\n"
        f"def progress(done, total): os._exit(9) if done >= {stop_after} else None\n"
        "build_gallery(model_path=Path(sys.argv[1]), sources=['s3://bucket/photos'], out=Path(sys.argv[2]), "
        "config=BuildConfig(batch_size=1, workers=1, checkpoint_images=2), progress=progress)"
    )
    command = [sys.executable, "-c", script, str(tiny_model), str(tmp_path / "g")]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 9
    buckets.asked.clear()
    assert build("s3://bucket/photos", tmp_path / "g", tiny_model).indexed == 18
    assert buckets.count("GET") <= 18 - stop_after + 2  # the shard is kept, and two images at most are done again
    assert by_path(tmp_path / "g") == by_path(tmp_path / "whole")


def test_a_lost_bucket(tmp_path: Path, tiny_model: Path, image_folder: Path, buckets: FileServer) -> None:
    upload(image_folder, buckets)
    build("s3://bucket/photos", tmp_path / "g", tiny_model)
    before, kept = vectors(tmp_path / "g"), dict(buckets.files)
    buckets.files.clear()
    with pytest.raises(InputError, match="NoSuchBucket"):
        update_gallery(tmp_path / "g", config=SMALL)
    buckets.files["/bucket/other.png"] = b"x"
    with pytest.raises(InputError, match="no file lies below it"):
        update_gallery(tmp_path / "g", config=SMALL)
    buckets.files |= kept
    assert vectors(tmp_path / "g") == before
    assert not update_gallery(tmp_path / "g", config=SMALL).changed


def test_searches_ask_no_network(tmp_path: Path, tiny_model: Path, image_folder: Path, buckets: FileServer) -> None:
    upload(image_folder, buckets)
    build("s3://bucket/photos", tmp_path / "g", tiny_model)
    buckets.asked.clear()
    gallery = Gallery.open(tmp_path / "g")
    [hit] = gallery.search(gallery.vector(int(gallery.ids[0])), k=1)
    assert hit.location.startswith("s3://bucket/photos/")
    assert verify_gallery(tmp_path / "g", sample=0).problems == []
    assert not buckets.asked
