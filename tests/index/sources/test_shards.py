"""Compressed shards: unpacked once, read like plain ones, and whatever is wrong with them."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from index.errors import InputError
from index.paths import user_cache
from index.sources import spool as spooling
from index.sources.reading import read_place
from index.sources.registry import find_source
from index.sources.unpacking import unpack
from tests.conftest import CLASSES, draw_image
from tests.index.hostile import encode

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "tgz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
PICTURES = [encode(draw_image(colour, seed=n), "PNG") for n in range(4) for colour in CLASSES.values()]


def pack_plain(count: int = len(PICTURES), *, noises: int = 0) -> bytes:
    """A plain tar as WebDataset writes it: images with a label and a caption each, perhaps noise behind."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, picture in enumerate(PICTURES[:count]):
            for name, data in (
                (f"{number:04}.png", picture),
                (f"{number:04}.cls", str(number % 3).encode()),
                (f"{number:04}.json", b'{"caption": "an image"}'),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        for number in range(noises):
            info = tarfile.TarInfo(f"noise{number}.bin")
            info.size = 1 << 16
            archive.addfile(info, io.BytesIO(os.urandom(info.size)))
    return file.getvalue()


def write_shard(folder: Path, kind: str, *, plain: bytes | None = None) -> Path:
    file = folder / (f"x.{kind}" if kind == "tgz" else f"x.tar.{kind}")
    file.write_bytes(PACKERS[kind](pack_plain() if plain is None else plain))
    return file


@pytest.mark.parametrize("kind", PACKERS)
def test_a_compressed_shard_has_what_the_plain_one_has(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x.tar").write_bytes(pack_plain())
    plain = [*find_source(str(tmp_path / "x.tar")).scan()]
    source = find_source(str(write_shard(tmp_path, kind)))
    items = [*source.scan()]
    said = [(item.label, item.metadata, item.starts_at, item.size_bytes) for item in items]
    assert said == [(item.label, item.metadata, item.starts_at, item.size_bytes) for item in plain]
    assert [read_place(source.locate(item)) for item in items] == PICTURES
    assert items[0].label == "0"
    assert items[0].metadata == {"caption": "an image"}


def test_a_shard_is_unpacked_once_unless_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, unpacked = write_shard(tmp_path, "gz"), []
    monkeypatch.setattr(spooling, "unpack", lambda parts: unpacked.append(1) or unpack(parts))
    source = find_source(str(file))
    for _ in range(2):
        assert len([read_place(source.locate(item)) for item in source.scan()]) == len(PICTURES)
    assert len(unpacked) == 1
    os.utime(file, ns=(1, 1))
    assert len([*source.scan()]) == len(PICTURES)
    assert len(unpacked) == 2


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_of_a_shard_that_ends_too_soon_what_came_before_is_kept(tmp_path: Path, kind: str) -> None:
    # With noise behind, for a short shard is one block, of which nothing comes before its end.
    shard = write_shard(tmp_path, kind, plain=pack_plain(noises=30 if kind == "bz2" else 8))
    packed = shard.read_bytes()
    shard.write_bytes(packed[: len(packed) * 2 // 3])
    *items, last = find_source(str(shard)).scan()
    assert [item.path.rpartition("/")[2] for item in items[: len(PICTURES)]] == [
        f"{number:04}.png" for number in range(len(PICTURES))
    ]
    assert last.problem.reason == "corrupt-archive"
    assert "ends too soon" in last.problem.detail
    [*_, again] = find_source(str(shard)).scan()  # from the folder, which remembers the damage
    assert again.problem.detail == last.problem.detail
    if kind == "gz":
        shard.write_bytes(packed[:-8] + bytes([packed[-8] ^ 255]) + packed[-7:])  # in its checksum
        *items, last = find_source(str(shard)).scan()
        assert "damaged gzip" in last.problem.detail


def test_a_shard_that_unpacks_to_too_much_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "MAX_SPOOLED_BYTES", 100_000)
    [item] = find_source(str(write_shard(tmp_path, "gz", plain=bytes(10_000_000)))).scan()
    assert (item.problem.reason, item.path) == ("too-costly", "x.tar.gz")
    assert [*(user_cache() / "shards").iterdir()] == []


def test_the_least_recently_used_shards_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(pack_plain())
    monkeypatch.setattr(spooling, "MAX_SPOOLED_BYTES", 2 * size + 100)
    sources = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        sources.append(find_source(str(write_shard(tmp_path / str(number), "gz"))))
        assert len([*sources[-1].scan()]) == len(PICTURES)
        for file in (user_cache() / "shards").iterdir():
            os.utime(file, ns=(file.stat().st_mtime_ns - 10**9,) * 2)
    assert len([*(user_cache() / "shards").iterdir()]) == 2
    left = user_cache() / "shards" / f".retrieval-{'0' * 16}.tmp"  # as by a process that was killed
    left.write_bytes(b"half")
    os.utime(left, ns=(1, 1))
    first = [*sources[0].scan()]
    assert not left.exists()
    assert read_place(sources[0].locate(first[3])) == PICTURES[3]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = write_shard(tmp_path, "gz")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be unpacked there: .*XDG_CACHE_HOME"):
        list(find_source(str(shard)).scan())


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("part_bytes", [7, 1 << 20])
def test_streams_that_follow_each_other_are_one(kind: str, part_bytes: int) -> None:
    data = os.urandom(5000) + bytes(100_000)
    packed = PACKERS[kind](data) * 2
    parts = [packed[start : start + part_bytes] for start in range(0, len(packed), part_bytes)]
    assert b"".join(unpack(parts)) == data * 2


def test_what_unpacks_to_much_comes_in_small_parts() -> None:
    sizes = [len(part) for part in unpack([gzip.compress(bytes(1 << 23))])]
    assert (max(sizes), sum(sizes)) == (1 << 20, 1 << 23)
