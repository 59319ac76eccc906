"""Archives of little size that hold, or say that they hold, far more than they can."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest

from index.errors import ImageError
from index.sources.archive_scan import scan_archive
from index.sources.folder import FolderSource
from index.sources.items import FoundItem
from index.sources.reading import read_place
from tests.index.hostile import PHOTO, encode

PNG = encode(PHOTO, "PNG")
METHODS = {"deflated": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "LZMA": zipfile.ZIP_LZMA}


def zip_of(members: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def overlapping_zip(count: int, *, size_bytes: int) -> bytes:
    """One member of many zeros behind the beginning of a PNG, listed again and again under other names."""
    data = zip_of({"0000.png": PNG[:16] + bytes(size_bytes)})
    start, end = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    listed = data[start:end]
    entries = b"".join(listed.replace(b"0000.png", b"%04d.png" % number) for number in range(count))
    tail = bytearray(data[end:])
    struct.pack_into("<HHL", tail, 8, count, count, len(entries))
    return data[:start] + entries + bytes(tail)


def scan(folder: Path, data: bytes) -> list[FoundItem]:
    (folder / "a.zip").write_bytes(data)
    return list(scan_archive(folder / "a.zip", archive="a.zip"))


def announced(items: list[FoundItem]) -> int:
    return sum(item.size_bytes for item in items if item.problem is None)


def test_members_that_overlap_are_a_reason_each_and_all_together_hold_what_the_archive_can(tmp_path: Path) -> None:
    data = overlapping_zip(3000, size_bytes=200_000_000)
    assert len(data) < 400_000
    items = scan(tmp_path, data)
    assert len(items) == 3000
    assert sum(item.problem is None for item in items) <= 1
    assert {item.problem.detail for item in items if item.problem} == {"it overlaps another member of the archive"}
    assert announced(items) <= 1032 * len(data)


def test_a_member_that_reaches_into_the_next_is_a_reason_and_the_next_is_read(tmp_path: Path) -> None:
    data = bytearray(zip_of({"1.png": PNG, "2.png": PNG}))
    first = data.index(b"PK\1\2")
    (packed,) = struct.unpack_from("<L", data, first + 20)
    struct.pack_into("<L", data, first + 20, packed + 100)
    one, two = scan(tmp_path, bytes(data))
    assert one.problem is not None
    assert one.problem.reason == "corrupt"
    assert read_place(FolderSource(str(tmp_path)).locate(two)) == PNG


@pytest.mark.parametrize("method", METHODS)
def test_ordinary_members_of_every_method_are_read(tmp_path: Path, method: str) -> None:
    blank = encode(PHOTO.resize((2000, 2000)).point(lambda _: 255), "BMP")  # packs as well as an image can
    items = scan(tmp_path, zip_of({"1.png": PNG, "2.bmp": blank}, method=METHODS[method]))
    assert read_place(FolderSource(str(tmp_path)).locate(items[0])) == PNG
    if method == "deflated":
        assert read_place(FolderSource(str(tmp_path)).locate(items[1])) == blank
    else:
        assert items[1].problem is not None
        assert items[1].problem.reason == "too-costly"


def test_a_lying_size_does_not_get_more_unpacked_than_the_packed_bytes_can_be(tmp_path: Path) -> None:
    data = bytearray(zip_of({"1.png": PNG}))
    struct.pack_into("<L", data, data.index(b"PK\1\2") + 24, 500_000_000)
    [item] = scan(tmp_path, bytes(data))
    assert item.problem is not None
    assert item.problem.reason == "too-costly"
    assert "500000000 bytes are announced" in item.problem.detail


@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_is_no_image_is_not_unpacked(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = zip_of({"1.png": b"no image " * 300_000}, method=METHODS[method])
    monkeypatch.setattr("index.sources.archive_scan._MAX_UNPACKING", 1 << 40)
    [item] = scan(tmp_path, data)
    unpacked: list[int] = []

    def measure(first: bytes, *, name: str) -> None:
        unpacked.append(len(first))
        raise ImageError(path=name, reason="not-an-image", detail="")

    with pytest.raises(ImageError) as caught:
        read_place(FolderSource(str(tmp_path)).locate(item), check=measure)
    assert caught.value.reason == "not-an-image"
    assert unpacked == [16]
    with pytest.raises(ImageError, match="not-an-image"):
        read_place(FolderSource(str(tmp_path)).locate(item))
