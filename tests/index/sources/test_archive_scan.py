import errno
import gzip
import io
import json
import logging
import os
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.errors import ImageError, InputError
from index.images.image_files import REASONS, decode_image, take_any_content
from index.items import FoundItem, Place
from index.limits import MAX_FILE_BYTES
from index.sources.archive_scan import scan_archive
from index.sources.reading import read_place
from tests.index.hostile import PHOTO, encode, zip_of_a_huge_member

Members = Sequence[tuple[str, bytes]]
METHODS = {"stored": 0, "deflated": 8}
PNG = encode(PHOTO, "PNG")


def write_tar(file: Path, members: Members, *, kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(file, "w", format=kind, encoding="utf-8", errors="surrogateescape") as archive:
        for name, data in members:
            add_to_tar(archive, name, data=data)
    return file


def add_to_tar(archive: tarfile.TarFile, name: str, *, data: bytes = b"", **header: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in header.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


class _Stream(io.RawIOBase):
    """A file that cannot be sought, so that zipfile writes sizes and CRC behind each member."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self.file.write(data)  # type: ignore[call-overload,no-any-return]


def write_zip(file: Path, members: Members, *, method: int = 0, streamed: bool = False) -> Path:
    with (
        file.open("wb") as opened,
        zipfile.ZipFile(_Stream(opened) if streamed else opened, "w", method) as archive,  # type: ignore[arg-type]
    ):
        for name, data in members:
            archive.writestr(name, data)
    return file


def write(file: Path, members: Members) -> Path:
    return write_zip(file, members) if file.suffix == ".zip" else write_tar(file, members)


def scan(file: Path) -> list[FoundItem]:
    return list(scan_archive(file, archive=file.name))


def reasons(file: Path) -> dict[str, str | None]:
    return {item.path.removeprefix(f"{file.name}/"): item.problem and item.problem.reason for item in scan(file)}


def place_of(item: FoundItem, folder: Path) -> Place:
    file = folder / (item.archive or item.path)
    return Place(file, item.path, offset=item.starts_at, size_bytes=item.size_bytes, mtime_ns=item.mtime_ns)


def read(item: FoundItem, folder: Path) -> bytes:
    return read_place(place_of(item, folder), check=take_any_content)


def fail_to_read(item: FoundItem, folder: Path) -> ImageError:
    with pytest.raises(ImageError) as caught:
        read(item, folder)
    assert caught.value.reason in REASONS
    assert caught.value.detail
    return caught.value


def fits_a_catalogue(items: Sequence[FoundItem]) -> bool:
    numbers = [number for item in items for number in (item.size_bytes, item.mtime_ns, item.starts_at or 0)]
    return bool(numbers) and all(-(2**63) <= number < 2**63 for number in numbers)


@pytest.mark.parametrize("name", ["shard.tar", "shard.ZIP"])
def test_members_are_found_in_the_archives_order_and_read_in_place(tmp_path: Path, name: str) -> None:
    members = [("b/2.png", PNG), ("a/1.png", b"first"), ("empty.jpg", b"")]
    file = tmp_path / name
    (write_zip if name.lower().endswith("zip") else write_tar)(file, members)
    items = scan(file)
    assert [(item.path, item.size_bytes) for item in items] == [(f"{name}/{key}", len(d)) for key, d in members]
    assert {item.archive for item in items} == {name}
    assert {item.mtime_ns for item in items} == {file.stat().st_mtime_ns}
    assert [read(item, tmp_path) for item in items] == [data for _, data in members]
    assert decode_image(read(items[0], tmp_path), name="x", target_side=64).size == PHOTO.size
    assert os.listdir(tmp_path) == [name]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0./"), min_size=1, max_size=12)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = st.dictionaries(PATHS.map("{}.jpg".format), st.binary(max_size=2000), max_size=6)


@settings(max_examples=40)
@given(CONTENTS, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, *METHODS]), st.booleans())
def test_any_names_and_contents_come_back(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes], kind: str | int, streamed: bool
) -> None:
    folder, members = tmp_path_factory.mktemp("any"), list(contents.items())
    if isinstance(kind, str):
        file = write_zip(folder / "x.zip", members, method=METHODS[kind], streamed=streamed)
    else:
        file = write_tar(folder / "x.tar", members, kind=kind)
    assert {item.path.removeprefix(f"{file.name}/"): read(item, folder) for item in scan(file)} == contents


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    members = [(f"{i}.jpg", random.Random(i).randbytes(5000 + i)) for i in range(200)]
    for file in (write_tar(tmp_path / "x.tar", members), write_zip(tmp_path / "x.zip", members, method=8)):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda item: read(item, tmp_path), scan(file)))
        assert found == [data for _, data in members]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_sidecars_describe_the_image_of_their_name(tmp_path: Path, kind: str) -> None:
    sample = {"key": "7", "width": 300, "caption": "a lamp", "nsfw": None, "exif": {"Make": "x"}}
    members = [("7.jpg", PNG), ("7.json", json.dumps(sample).encode()), ("7.txt", b"another"), ("d/8.cls", b" 3\n")]
    members += [("d/8.png", PNG), ("d/8.txt", b" ein Stuhl \n"), ("9.npy", b"\x93NUMPY"), ("9.webp", PNG)]
    seven, eight, nine = scan(write(tmp_path / f"00000.{kind}", members))
    assert (seven.path, seven.label) == (f"00000.{kind}/7.jpg", None)
    assert seven.metadata == {"key": "7", "width": 300, "caption": "a lamp", "exif": {"Make": "x"}}
    assert (eight.path, eight.label, eight.metadata) == (f"00000.{kind}/d/8.png", "3", {"caption": "ein Stuhl"})
    assert (nine.path, nine.label, nine.metadata) == (f"00000.{kind}/9.webp", None, None)


@settings(max_examples=30)
@given(st.permutations(["jpg", "json", "txt", "cls", "JSON2"]), st.sampled_from(["tar", "zip"]))
def test_sidecars_in_any_order(tmp_path_factory: pytest.TempPathFactory, order: list[str], kind: str) -> None:
    contents = {"jpg": b"image", "txt": b"y", "cls": b"z", "JSON2": b"{}"}
    contents["json"] = b'{"label": 12, "price": 3.5, "caption": "x"}'
    folder = tmp_path_factory.mktemp("order")
    members = [("0.png", b""), *((f"1.{end}", contents[end]) for end in order), ("2.png", b"")]
    items = {item.path: item for item in scan(write(folder / f"x.{kind}", members))}
    assert set(items) == {f"x.{kind}/{name}" for name in ("0.png", "1.jpg", "1.JSON2", "2.png")}
    image = items[f"x.{kind}/1.jpg"]
    assert (image.label, image.metadata) == ("12", {"price": 3.5, "caption": "x"})
    assert items[f"x.{kind}/0.png"].label is items[f"x.{kind}/2.png"].metadata is None


def test_what_has_no_image_beside_it_is_an_item(tmp_path: Path) -> None:
    names = ["a.json", "notes.txt", "d/table.csv", "e/.json", "f/1.jpg", "g/1.json", "1.txt", "1.json"]
    for file in (tmp_path / "x.tar", tmp_path / "x.zip"):
        assert list(reasons(write(file, [(name, b"{}") for name in names]))) == names


def test_a_sidecar_describes_all_images_of_its_name_and_no_other(tmp_path: Path) -> None:
    members = [("a.jpg", b""), ("a.mask.png", b""), ("a.json", b'{"n": 1}'), ("ab.jpg", b""), ("b", b"")]
    members += [("b.cls", b"cat"), ("c.1.jpg", b""), ("c.1.json", b'{"n": 2}'), ("c.2.jpg", b"")]
    found = {item.path: (item.label, item.metadata) for item in scan(write_tar(tmp_path / "x", members))}
    none, one, two = (None, None), (None, {"n": 1}), (None, {"n": 2})
    assert list(found) == ["x/a.jpg", "x/a.mask.png", "x/ab.jpg", "x/b", "x/c.1.jpg", "x/c.2.jpg"]
    assert list(found.values()) == [one, one, none, ("cat", None), two, none]


def test_a_long_series_of_dotted_names_keeps_its_sidecars(tmp_path: Path) -> None:
    members = [(f"f.{i:04d}.{end}", json.dumps({"n": i}).encode()) for i in range(500) for end in ("json", "png")]
    items = scan(write_zip(tmp_path / "x.zip", members))
    assert [(item.path, item.metadata) for item in items] == [(f"x.zip/f.{i:04d}.png", {"n": i}) for i in range(500)]


def test_a_broken_sidecar_is_logged_and_its_image_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    digits, large = b'{"n": ' + b"9" * 5000 + b"}", b" " * (1 << 20) + b"{}"
    for number, broken in enumerate((b"", b"{", b"[1]", b"\xff\xfe{", b"[" * 100_000, digits, large)):
        file = write(tmp_path / f"x.{'tar' if number % 2 else 'zip'}", [("1.json", broken), ("1.jpg", PNG)])
        with caplog.at_level(logging.DEBUG, logger="index.sources.archive_scan"):
            (item,) = scan(file)
        assert (item.label, item.metadata, item.problem) == (None, None, None)
        assert "sidecar 1.json is ignored" in caplog.text
        caplog.clear()
        assert read(item, tmp_path) == PNG


@pytest.mark.parametrize(
    ("content", "label", "metadata"),
    [
        ({"label": "cat"}, "cat", None),
        ({"label": 3.0}, "3", None),
        ({"label": None}, "folder", None),
        ({"label": True}, "folder", {"label": True}),
        ({"x": float("nan"), "y": [float("inf"), {"z": None}]}, "folder", {"y": [None, {"z": None}]}),
        ({"x": "half \ud800", "half \udc80": 1}, "folder", {"x": "half \\ud800", "half \\udc80": 1}),
    ],
)
def test_values_of_a_json_sidecar(tmp_path: Path, content: object, label: str, metadata: object) -> None:
    members = [("folder/1.jpg", b""), ("folder/1.json", json.dumps(content).encode())]
    (item,) = scan(write_tar(tmp_path / "x.tar", members))
    assert (item.label, item.metadata) == (label, metadata)
    json.dumps(item.metadata, ensure_ascii=False, allow_nan=False).encode()


ODD = {
    "../../up.jpg": "up.jpg",
    "/etc/passwd": "etc/passwd",
    "./a/./b.jpg": "a/b.jpg",
    "a//c.jpg": "a/c.jpg",
    "..": "unnamed",
    "x/../../..": "x",
    "a/..jpg": "a/..jpg",
}
AGAIN = (["1.jpg", "1.jpg#2", "./1.jpg", "1.jpg", "1.jpg#2"], ["1.jpg", "1.jpg#2", "1.jpg#3", "1.jpg#4", "1.jpg#2#2"])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("names", "expected"), [(list(ODD), list(ODD.values())), AGAIN], ids=["odd", "met again"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_get_their_own_safe_names(tmp_path: Path, kind: str, names: list[str], expected: list[str]) -> None:
    items = scan(write(tmp_path / f"x.{kind}", [(name, str(i).encode()) for i, name in enumerate(names)]))
    assert [item.path for item in items] == [f"x.{kind}/{name}" for name in expected]
    assert [read(item, tmp_path) for item in items] == [str(i).encode() for i in range(len(names))]


def test_odd_names_in_a_tar(tmp_path: Path) -> None:
    names = ["caf\udce9.jpg", "new\nline.jpg", "long" * 80 + ".jpg", "é🐈.jpg"]
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert list(reasons(write_tar(tmp_path / "x.tar", [(name, b"") for name in names], kind=kind))) == names
    with tarfile.open(tmp_path / "nul.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        add_to_tar(archive, "x", pax_headers={"path": "a\0b.jpg"})
    assert list(reasons(tmp_path / "nul.tar")) == ["a\\0b.jpg"]


@pytest.mark.parametrize(
    ("raw", "name"),
    [("é🐈__".encode(), "é🐈__"), (b"caf\x82____", "café____"), (b"caf\x82\0___", "café")],
    ids=["UTF-8", "code page 437", "NUL"],
)
def test_names_of_a_zip_without_the_flag_for_utf_8(tmp_path: Path, raw: bytes, name: str) -> None:
    file = write_zip(tmp_path / "x.zip", [("N" * len(raw), PNG)])
    file.write_bytes(file.read_bytes().replace(b"N" * len(raw), raw))
    assert list(reasons(file)) == [name]
    assert read(scan(file)[0], tmp_path) == PNG


def test_links_and_devices_in_a_tar_are_no_files_and_folders_are_nothing(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        add_to_tar(archive, "folder", type=tarfile.DIRTYPE)
        add_to_tar(archive, "folder/1.jpg", data=PNG)
        add_to_tar(archive, "soft.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add_to_tar(archive, "hard.jpg", type=tarfile.LNKTYPE, linkname="folder/1.jpg")
        add_to_tar(archive, "pipe.jpg", type=tarfile.FIFOTYPE)
        add_to_tar(archive, "device.jpg", type=tarfile.CHRTYPE)
        add_to_tar(archive, "soft.json", type=tarfile.SYMTYPE, linkname="1.json")
        add_to_tar(archive, "sparse.jpg", type=tarfile.GNUTYPE_SPARSE)
        add_to_tar(archive, "2.jpg", data=b"2")
    special = ["soft.jpg", "hard.jpg", "pipe.jpg", "device.jpg", "soft.json"]
    assert reasons(tmp_path / "x.tar") == {
        "folder/1.jpg": None,
        **dict.fromkeys(special, "not-a-file"),
        "sparse.jpg": "unreadable",
        "2.jpg": None,
    }


def test_links_in_a_zip_are_no_files_and_folders_are_nothing(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.mkdir("folder")
        link = zipfile.ZipInfo("soft.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("folder/1.jpg", PNG)
    assert reasons(tmp_path / "x.zip") == {"soft.jpg": "not-a-file", "folder/1.jpg": None}


SAMPLE = [("1.jpg", bytes(range(256)) * 3), ("2.jpg", b"x" * 512), ("e.jpg", b""), ("3.jpg", b"y" * 1500)]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_truncated_tar_gives_what_lies_before_the_cut(tmp_path: Path, kind: int) -> None:
    members = [*SAMPLE, ("n" * 90 + ("/m" * 60 if kind != tarfile.USTAR_FORMAT else ""), b"z" * 600)]
    file = write_tar(tmp_path / "x.tar", members, kind=kind)
    data, items = file.read_bytes(), scan(file)
    ends = [(item.starts_at or 0) + item.size_bytes for item in items]
    last = -(-ends[-1] // 512) * 512
    for cut in {*range(0, len(data), 512), *range(100, len(data), 700), last - 1, last + 1}:
        file.write_bytes(data[:cut])
        found = scan(file)
        whole = [item for item in found if item.problem is None]
        assert [item.path for item in whole] == [item.path for item, end in zip(items, ends, strict=True) if end <= cut]
        assert [read(item, tmp_path) for item in whole] == [body for _, body in members[: len(whole)]]
        broken = [(item.path, item.problem.reason, item.size_bytes) for item in found if item.problem]
        assert broken == ([("x.tar", "corrupt-archive", cut)] if cut < last + 512 else [])


def test_a_truncated_zip_is_corrupt_wherever_it_is_cut(tmp_path: Path) -> None:
    file = write_zip(tmp_path / "x.zip", SAMPLE, method=8)
    data = file.read_bytes()
    for cut in {*range(0, len(data), 512), *range(0, len(data), 37), len(data) - 1}:
        file.write_bytes(data[:cut])
        (item,) = scan(file)
        assert (item.path, item.size_bytes, item.problem.reason) == ("x.zip", cut, "corrupt-archive")


@pytest.mark.parametrize("content", [b"", b"no archive\n" * 99, PNG], ids=["empty", "text", "image"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_file_that_is_no_archive_is_one_item(tmp_path: Path, content: bytes, kind: str) -> None:
    (file := tmp_path / f"shoes.{kind}").write_bytes(content)
    (item,) = scan_archive(file, archive=f"d/shoes.{kind}")
    assert (item.path, item.label, item.starts_at) == (f"d/shoes.{kind}", "d", None)
    assert (item.problem.reason, item.problem.path) == ("corrupt-archive", f"d/shoes.{kind}")


def test_a_compressed_tar_whose_name_does_not_say_so_is_one_item_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(gzip.compress(write_tar(tmp_path / "plain", SAMPLE).read_bytes()))
    (item,) = scan(tmp_path / "x.tar")
    assert item.problem.reason == "compressed-archive"
    assert "packed by gzip" in item.problem.detail
    assert "call it .tar.gz" in REASONS["compressed-archive"]


def set_checksum(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def test_a_member_of_negative_size_does_not_send_the_scan_round_in_circles(tmp_path: Path) -> None:
    file = write_tar(tmp_path / "x.tar", SAMPLE, kind=tarfile.USTAR_FORMAT)
    data = file.read_bytes()
    for size in (-1, -512, -1024, -1536, 2**70):
        for start in (0, 1536, 2560):
            header = bytearray(data[start : start + 512])
            header[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % 2**88).to_bytes(11, "big")
            file.write_bytes(data[:start] + set_checksum(header) + data[start + 512 :])
            found = reasons(file)
            assert found.pop("x.tar") == "corrupt-archive"
            assert list(found) == ["1.jpg", "2.jpg"][: start // 1024]


def test_a_chain_of_headers_is_damage(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        add_to_tar(archive, "1.jpg", data=PNG)
        for _ in range(2000):
            add_to_tar(archive, "long", data=b"name", type=tarfile.GNUTYPE_LONGNAME)
    assert reasons(tmp_path / "x.tar") == {"1.jpg": None, "x.tar": "corrupt-archive"}


def test_headers_are_not_read_beyond_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a" * 5000, b"")], kind=tarfile.GNU_FORMAT)
    plain = write_zip(tmp_path / "x.zip", [("a" * 5000, b"")])
    monkeypatch.setattr("index.sources.archive_scan.MAX_FILE_BYTES", 4000)
    assert reasons(tar) == {"x.tar": "corrupt-archive"}
    assert reasons(plain) == {"x.zip": "corrupt-archive"}


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_damaged_bytes_anywhere_end_as_items_or_known_reasons(tmp_path: Path, kind: str) -> None:
    generator = random.Random(kind)
    samples = [write_tar(tmp_path / "s", SAMPLE, kind=k).read_bytes() for k in (0, 1, 2)]
    if kind == "zip":
        samples = [write_zip(tmp_path / "s", SAMPLE, method=m).read_bytes() for m in METHODS.values()]
    file = tmp_path / f"x.{kind}"
    for _ in range(200):
        data = bytearray(generator.choice(samples))
        for _ in range(generator.choice((1, 2, 20))):
            place = generator.randrange(len(data)) if generator.random() < 0.5 else -generator.randrange(1, 400)
            data[place] = generator.choice((0, 0xFF, 0x80, generator.randrange(256)))
            if kind == "tar" and generator.random() < 0.8:
                start = place % len(data) // 512 * 512
                data[start : start + 512] = set_checksum(data[start : start + 512])
        file.write_bytes(data)
        items = scan(file)
        assert len({item.path for item in items}) == len(items) <= 2 * len(SAMPLE)
        assert not items or fits_a_catalogue(items)
        for item in items:
            if item.problem is not None:
                assert item.problem.reason in REASONS
                continue
            try:
                assert len(read(item, tmp_path)) == item.size_bytes
            except ImageError as error:
                assert error.reason in REASONS  # noqa: PT017 - either outcome is right


def test_encrypted_members_and_unknown_methods_are_known_without_reading(tmp_path: Path) -> None:
    for name, local, central, value, reason in (("flag", 6, 8, 1, "encrypted"), ("method", 8, 10, 12, "unreadable")):
        file = write_zip(tmp_path / f"{name}.zip", [("1.jpg", PNG)])
        (sound,) = scan(file)
        data = bytearray(file.read_bytes())
        first, second = data.index(b"PK\3\4"), data.index(b"PK\1\2")
        data[first + local] = value
        file.write_bytes(data)  # the two headers disagree
        os.utime(file, ns=(0, sound.mtime_ns))
        assert fail_to_read(sound, tmp_path).reason == reason
        data[second + central] = value
        file.write_bytes(data)
        assert reasons(file) == {"1.jpg": reason}


@pytest.mark.parametrize("size", [MAX_FILE_BYTES + 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_zip_bomb_that_says_so_is_known_without_reading(tmp_path: Path, size: int) -> None:
    file = tmp_path / "x.zip"
    file.write_bytes(zip_of_a_huge_member(size))
    assert reasons(file) == {"photo.png": "file-too-large"}
    assert fits_a_catalogue(scan(file))
    file.write_bytes(zip_of_a_huge_member(len(PNG)))  # a sound size in 64 bits
    assert read(scan(file)[0], tmp_path) == PNG


def test_special_members_of_a_zip_may_announce_anything(tmp_path: Path) -> None:
    data = bytearray(zip_of_a_huge_member(2**64 - 1))
    central = data.index(b"PK\1\2")
    data[central + 4 : central + 6] = bytes((63, 3))  # made on Unix
    data[central + 38 : central + 42] = struct.pack("<L", 0o120777 << 16)
    (tmp_path / "x.zip").write_bytes(data)
    assert reasons(tmp_path / "x.zip") == {"photo.png": "not-a-file"}
    assert fits_a_catalogue(scan(tmp_path / "x.zip"))


@pytest.mark.parametrize("size", [2**33, 2**63, 2**70, 2**87 - 1])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Q"])
def test_special_members_of_a_tar_may_announce_anything(tmp_path: Path, kind: bytes, size: int) -> None:
    file = tmp_path / "x.tar"
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as archive:
        add_to_tar(archive, "1.jpg", data=PNG)
        add_to_tar(archive, "special.jpg", type=kind)
    data = bytearray(file.read_bytes())
    start = data.index(b"special.jpg")
    sizes = (124, 483) if kind == tarfile.GNUTYPE_SPARSE else (124,)  # as stored, and as it is when whole
    for field in sizes:
        data[start + field : start + field + 12] = b"\x80" + size.to_bytes(11, "big")
    data[start : start + 512] = set_checksum(data[start : start + 512])
    file.write_bytes(data)
    found = reasons(file)
    assert found.pop("1.jpg", "missing") is None
    assert set(found.values()) <= {"not-a-file", "unreadable", "corrupt-archive"}
    assert found
    assert fits_a_catalogue(scan(file))


def test_a_zip_bomb_that_hides_it_is_unpacked_no_further_than_announced(tmp_path: Path) -> None:
    file = write_zip(tmp_path / "x.zip", [("1.jpg", bytes(20_000_000))], method=8)
    data = bytearray(file.read_bytes())
    central = data.index(b"PK\1\2")
    data[central + 24 : central + 28] = struct.pack("<L", 1000)
    file.write_bytes(data)
    (item,) = scan(file)
    assert item.size_bytes == 1000
    tracemalloc.start()
    error = fail_to_read(item, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (error.reason, error.detail) == ("corrupt", "1000 bytes were announced, there are more")
    assert peak < 12_000_000


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_members_larger_than_a_chunk_are_read_or_corrupt(tmp_path: Path, method: str, streamed: bool) -> None:
    body = random.Random(1).randbytes(300_000) + bytes(300_000)
    file = write_zip(tmp_path / "x.zip", [("1.jpg", body)], method=METHODS[method], streamed=streamed)
    assert read(scan(file)[0], tmp_path) == body
    data = bytearray(file.read_bytes())
    data[2000] ^= 0xFF
    file.write_bytes(data)
    assert fail_to_read(scan(file)[0], tmp_path).reason == "corrupt"


def test_a_zip_whose_list_points_elsewhere_is_told_member_by_member(tmp_path: Path) -> None:
    file = write_zip(tmp_path / "x.zip", [("1.jpg", PNG), ("2.jpg", PNG)])
    data = bytearray(file.read_bytes())
    central = data.index(b"PK\1\2")
    for offset, reason in ((5, None), (2**31, "corrupt")):
        data[central + 42 : central + 46] = struct.pack("<L", offset)
        file.write_bytes(data)
        assert reasons(file) == {"1.jpg": reason, "2.jpg": None}
        if reason is None:
            assert fail_to_read(scan(file)[0], tmp_path).reason == "corrupt"


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_an_archive_that_changed_since_it_was_scanned_is_not_read(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, [("1.jpg", PNG)])
    (item,) = scan(file)
    place = place_of(item, tmp_path)
    os.utime(file, ns=(0, item.mtime_ns + 1))
    error = fail_to_read(item, tmp_path)
    assert (error.path, error.reason) == (f"{name}/1.jpg", "unreadable")
    assert error.detail == "the archive changed since it was scanned"
    os.utime(file, ns=(0, item.mtime_ns))
    assert read_place(place) == PNG
    file.write_bytes(file.read_bytes()[: len(PNG) // 2])
    os.utime(file, ns=(0, item.mtime_ns))
    assert fail_to_read(item, tmp_path).reason == "corrupt"
    file.unlink()
    assert fail_to_read(item, tmp_path).reason == "unreadable"


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_an_archive_that_cannot_be_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / name, [("1.jpg", PNG)])
    (item,) = scan(file)

    def refuse_with(code: int) -> None:
        def refuse(path: str, flags: int) -> int:
            raise OSError(code, os.strerror(code), path)

        monkeypatch.setattr("index.images.image_files._open_without_waiting", refuse)

    refuse_with(errno.EACCES)
    assert reasons(file) == {name: "permission-denied"}
    assert fail_to_read(item, tmp_path).reason == "permission-denied"
    refuse_with(errno.EMFILE)
    with pytest.raises(InputError, match="ulimit -n"):
        scan(file)
    with pytest.raises(InputError, match="ulimit -n"):
        read(item, tmp_path)


def test_a_tar_of_many_members_is_scanned_in_flat_memory(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for i in range(1500):
            archive.addfile(tarfile.TarInfo(f"{i:05d}.jpg"))
            archive.members.clear()  # type: ignore[attr-defined]
    tracemalloc.start()
    count = sum(1 for _ in scan_archive(tmp_path / "x.tar", archive="x.tar"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1500
    assert peak < 500_000  # the names; the members themselves would take 3 MB


def scan_bytes(folder: Path, data: bytes) -> list[FoundItem]:
    (folder / "a.zip").write_bytes(data)
    return scan(folder / "a.zip")


def overlapping_zip(folder: Path, count: int, *, size_bytes: int) -> bytes:
    """One member of many zeros behind the beginning of a PNG, listed again and again under other names."""
    data = write_zip(folder / "a.zip", [("0000.png", PNG[:16] + bytes(size_bytes))], method=8).read_bytes()
    start, end = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    listed = data[start:end]
    entries = b"".join(listed.replace(b"0000.png", b"%04d.png" % number) for number in range(count))
    tail = bytearray(data[end:])
    struct.pack_into("<HHL", tail, 8, count, count, len(entries))
    return data[:start] + entries + bytes(tail)


def test_members_that_overlap_are_a_reason_each_and_all_together_hold_what_the_archive_can(tmp_path: Path) -> None:
    data = overlapping_zip(tmp_path, 3000, size_bytes=20_000_000)
    assert len(data) < 250_000
    items = scan_bytes(tmp_path, data)
    assert len(items) == 3000
    assert sum(item.problem is None for item in items) <= 1
    assert {item.problem.detail for item in items if item.problem} == {"it overlaps another member of the archive"}
    assert sum(item.size_bytes for item in items if item.problem is None) <= 1032 * len(data)


def test_a_member_that_reaches_into_the_next_is_a_reason_and_the_next_is_read(tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "a.zip", [("1.png", PNG), ("2.png", PNG)]).read_bytes())
    first = data.index(b"PK\1\2")
    (packed,) = struct.unpack_from("<L", data, first + 20)
    struct.pack_into("<L", data, first + 20, packed + 100)
    one, two = scan_bytes(tmp_path, bytes(data))
    assert one.problem.reason == "corrupt"
    assert read(two, tmp_path) == PNG


def test_what_packs_as_well_as_an_image_can_is_read(tmp_path: Path) -> None:
    blank = encode(PHOTO.resize((2000, 2000)).point(lambda _: 255), "BMP")
    [item] = scan(write_zip(tmp_path / "a.zip", [("2.bmp", blank)], method=8))
    assert read(item, tmp_path) == blank


def test_a_lying_size_does_not_get_more_unpacked_than_the_packed_bytes_can_be(tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "a.zip", [("1.png", PNG)], method=8).read_bytes())
    struct.pack_into("<L", data, data.index(b"PK\1\2") + 24, 500_000_000)
    [item] = scan_bytes(tmp_path, bytes(data))
    assert item.problem.reason == "too-costly"
    assert "500000000 bytes are announced" in item.problem.detail


def test_no_more_than_images_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.sources.archive_scan._MAX_UNPACKING", 1 << 40)
    [item] = scan(write_zip(tmp_path / "a.zip", [("1.png", b"no image " * 100_000)], method=8))
    unpacked: list[int] = []

    def measure(first: bytes, *, name: str) -> None:
        unpacked.append(len(first))
        raise ImageError(path=name, reason="not-an-image", detail="")

    with pytest.raises(ImageError, match="not-an-image"):
        read_place(place_of(item, tmp_path), check=measure)
    assert unpacked == [16]
    with pytest.raises(ImageError, match="not-an-image"):
        read_place(place_of(item, tmp_path))


def test_an_archive_that_is_not_there_is_one_item(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    assert reasons(tmp_path / "none.tar") == {"none.tar": "unreadable"}
    assert reasons(tmp_path / "pipe.tar") == {"pipe.tar": "not-a-file"}


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_an_archive_of_a_far_year_is_read(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, [("1.jpg", PNG)])
    os.utime(file, (10**10, 10**10))  # nanoseconds that no 64 signed bits hold
    (item,) = scan(file)
    assert fits_a_catalogue([item])
    assert read(item, tmp_path) == PNG
