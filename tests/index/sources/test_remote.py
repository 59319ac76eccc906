"""Buckets, and files of the web, as sources: what is listed and read, and what is said where it cannot be."""

import gzip
import sys
import time
from pathlib import Path

import pytest

from index.errors import ImageError, InputError, MissingDependencyError
from index.images.image_files import take_any_content
from index.network import object_store
from index.paths import user_cache
from index.sources import reading
from index.sources.reading import read_indexed, read_place
from index.sources.registry import find_source
from tests.index.sources.test_shards import PICTURES, pack_plain, write_shard
from tests.remote_servers import Fault, FileServer


def paths(text: str) -> list[str]:
    return [item.path for item in find_source(text).scan()]


def empty_shard_folder() -> None:
    for file in (user_cache() / "shards").iterdir():
        file.unlink()


def test_all_below_a_prefix_is_found_whatever_it_is_called_and_nothing_beside_it(buckets: FileServer) -> None:
    names = ["1.png", "a b/ü&?.png", "a/b/c.png", "a/x#y.png", "a/%41.png", "b"]
    for name in (*(f"photos/{name}" for name in names), "photos2/x.png", "photos"):
        buckets.files[f"/bucket/{name}"] = name.encode()
    buckets.files |= {"/bucket/photos/": b"", "/bucket/photos/a/": b""}  # as consoles mark folders
    source = find_source("s3://bucket/photos/")
    items = [*source.scan()]
    assert sorted(item.path for item in items) == sorted(names)
    assert {item.path: item.label for item in items}["a/b/c.png"] == "a"
    for item in items:
        read = read_place(source.locate(item), check=take_any_content)
        assert read == f"photos/{item.path}".encode()
    assert buckets.asked["LIST", "/bucket"] == 3  # pages, of three keys each


@pytest.mark.parametrize(
    ("pattern", "found"), [("s3://bucket/*/1.png", ["a/1.png", "b/1.png"]), ("s3://bucket/[b-z]*", ["b/1.png"])]
)
def test_a_pattern_finds_what_it_does_in_folders(buckets: FileServer, pattern: str, found: list[str]) -> None:
    buckets.files |= {f"/bucket/{name}": b"x" for name in ("a/1.png", "a/c/2.png", "b/1.png")}
    assert paths(pattern) == found


def test_the_stamp_of_a_file_changes_with_its_content_and_tells_when_it_changed(buckets: FileServer) -> None:
    buckets.files["/bucket/1.png"] = b"old"
    [old] = find_source("s3://bucket").scan()
    assert abs(old.mtime_ns / 1e9 - time.time()) < 60
    assert [*find_source("s3://bucket").scan()] == [old]
    buckets.files["/bucket/1.png"] = b"new"
    [new] = find_source("s3://bucket").scan()
    assert new.mtime_ns != old.mtime_ns


def test_shards_among_the_files_are_entered(buckets: FileServer, tmp_path: Path) -> None:
    buckets.files |= {
        "/bucket/data/0.tar": pack_plain(3),
        "/bucket/data/1.tar.gz": gzip.compress(pack_plain(2)),
        "/bucket/data/2.tar.xz": write_shard(tmp_path, "xz").read_bytes(),
        "/bucket/data/cat/1.png": PICTURES[0],
    }
    source = find_source("s3://bucket/data")
    items = [*source.scan()]
    assert len(items) == 3 + 2 + len(PICTURES) + 1
    assert [read_place(source.locate(item)) for item in items[:3]] == PICTURES[:3]
    assert {item.archive for item in items} == {"0.tar", "1.tar.gz", "2.tar.xz", None}


def test_members_of_a_plain_shard_that_is_not_kept_are_fetched_alone(buckets: FileServer) -> None:
    buckets.files["/bucket/0.tar"] = pack_plain()
    source = find_source("s3://bucket/0.tar")
    items = [*source.scan()]
    empty_shard_folder()
    assert [read_place(source.locate(item)) for item in items] == PICTURES
    assert [*(user_cache() / "shards").iterdir()] == []
    buckets.files["/bucket/0.tar"] = pack_plain(5)
    with pytest.raises(ImageError, match="changed since it was scanned"):
        read_place(source.locate(items[0]))


def test_a_compressed_shard_that_is_not_kept_is_fetched_again_unless_it_changed(buckets: FileServer) -> None:
    buckets.files["/bucket/0.tar.gz"] = gzip.compress(pack_plain())
    source = find_source("s3://bucket/0.tar.gz")
    items = [*source.scan()]
    empty_shard_folder()
    before = buckets.asked["GET", "/bucket/0.tar.gz"]
    assert [read_place(source.locate(item)) for item in items] == PICTURES
    assert buckets.asked["GET", "/bucket/0.tar.gz"] == before + 1
    empty_shard_folder()
    buckets.files["/bucket/0.tar.gz"] = gzip.compress(pack_plain(5))
    with pytest.raises(ImageError, match="changed since it was scanned"):
        read_place(source.locate(items[0]))


def test_a_shard_that_breaks_off_on_its_way_is_gone_on_with(web: FileServer) -> None:
    web.files["/0.tar"] = pack_plain(noises=20)
    web.faults["/0.tar"] = [Fault(), Fault(is_cut=True), Fault(503), Fault(is_cut=True)]
    source = find_source(f"{web.address}/0.tar")
    items = [*source.scan()]
    assert len(items) == len(PICTURES) + 20
    assert [read_place(source.locate(item)) for item in items[: len(PICTURES)]] == PICTURES
    assert web.asked["GET", "/0.tar"] == 4


def test_a_shard_that_cannot_be_fetched_is_one_item(buckets: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets.files |= {"/bucket/0.tar": pack_plain(1), "/bucket/1.png": PICTURES[0]}
    buckets.faults["/bucket/0.tar"] = [Fault(500)] * 20
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 0})
    first, second = find_source("s3://bucket").scan()
    assert first.problem.reason == "unreachable"
    assert "500" in first.problem.detail
    assert second.problem is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("s3://none/photos", r"^s3://none/photos: NoSuchBucket.*nothing has this name"),
        ("s3://bucket/none", r"^s3://bucket/none: no file lies below it"),
        ("s3://bucket/none.tar", r"^s3://bucket/none.tar: .*nothing has this name"),
        ("s3://odd", r"a key is not a path .*odd//1.png.*give a prefix without such keys$"),
        ("s3://*/x", r"a pattern begins behind the bucket"),
        ("https://example.org/photos", r"http and https list nothing; give the address of an archive"),
        ("simplecache::s3://bucket/photos", "no such file or folder"),
        ("file:///etc", "unknown kind of address"),
        ("sftp://host/photos", "unknown kind of address"),
    ],
)
def test_what_cannot_be_found_is_said(buckets: FileServer, text: str, problem: str) -> None:
    buckets.files |= {"/bucket/1.png": PICTURES[0], "/odd/odd//1.png": PICTURES[0]}
    with pytest.raises(InputError, match=problem):
        list(find_source(text).scan())


def test_keys_are_found_in_profiles(buckets: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    buckets.files["/bucket/1.png"] = PICTURES[0]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "keys").write_text("[mine]\naws_access_key_id = owner\naws_secret_access_key = a%b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert paths("s3://bucket") == ["1.png"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    with pytest.raises(InputError, match=r"s3://bucket: AccessDenied.*no right to read it with the given keys"):
        paths("s3://bucket")
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(InputError, match=r"^s3://bucket: .*error sending request.*check the address.*AWS_ENDPOINT_URL"):
        paths("s3://bucket")


@pytest.mark.parametrize(("package", "text"), [("obstore", "s3://bucket"), ("httpcore", "https://example.org/x.tar")])
def test_a_missing_package_names_its_extra(package: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", f"without-{package}")  # a store of its own
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("object_store", "web_store"):
        monkeypatch.delitem(sys.modules, f"index.network.{module}")
    with pytest.raises(MissingDependencyError, match=rf"'{package}', which is not installed.*retrieval-app\[remote\]"):
        list(find_source(text).scan())


def test_an_image_at_an_address_is_a_source(web: FileServer) -> None:
    web.files["/a/1.jpg"] = PICTURES[0]
    source = find_source(f"{web.address}/a/1.jpg?size=2")
    [item] = source.scan()
    assert read_place(source.locate(item)) == PICTURES[0]
    del web.files["/a/1.jpg"]
    assert [*source.scan()] == []


def test_a_request_is_answered_without_retries(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files |= {"/0.tar": pack_plain(3), "/1.tar.gz": gzip.compress(pack_plain(3)), "/1.png": PICTURES[0]}
    plain, packed, image = (find_source(f"{web.address}/{name}") for name in ("0.tar", "1.tar.gz", "1.png"))
    places = [source.locate(next(iter(source.scan()))) for source in (plain, packed, image)]
    assert [read_indexed(place) for place in places] == [PICTURES[0]] * 3
    empty_shard_folder()
    web.asked.clear()
    assert read_indexed(places[0]) == PICTURES[0]
    with pytest.raises(ImageError, match="archive is not in the cache"):
        read_indexed(places[1])
    web.faults["/1.png"] = [Fault(503)]
    with pytest.raises(ImageError, match="status 503"):
        read_indexed(places[2])
    assert web.asked == {("GET", "/0.tar"): 1, ("GET", "/1.png"): 1}
    assert read_place(places[1]) == PICTURES[0]


def test_a_plain_archive_is_fetched_once_from_a_server_without_ranges(web: FileServer) -> None:
    web.files["/0.tar"] = pack_plain(3)
    source = find_source(f"{web.address}/0.tar")
    places = [source.locate(item) for item in source.scan()]
    empty_shard_folder()
    web.has_ranges = False
    with pytest.raises(ImageError, match="archive is not in the cache"):
        read_indexed(places[0])
    web.asked.clear()
    assert [read_place(place) for place in places] == PICTURES[:3]
    assert web.asked["GET", "/0.tar"] == 2


def test_too_many_bytes_are_not_fetched(buckets: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets.files["/bucket/1.png"] = PICTURES[0]
    source = find_source("s3://bucket/1.png")
    [item] = source.scan()
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 100)
    with pytest.raises(ImageError, match="file-too-large"):
        read_place(source.locate(item))
