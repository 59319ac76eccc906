"""When a photo was taken, by its Exif."""

import io
import os
import struct
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from index.images.taken_time import read_taken_time
from training.run.searches import read_file_sources

SECONDS = datetime(2021, 7, 31, 12, 30, 5, tzinfo=UTC).timestamp()


def _save(path: Path, taken: str | None) -> Path:
    exif = Image.Exif()
    exif[0x010F] = "A maker with a long name"
    if taken is not None:
        exif.get_ifd(0x8769)[0x9003] = taken
    Image.new("RGB", (8, 8)).save(path, exif=exif)
    return path


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("taken") / "photo.jpg", "2021:07:31 12:30:05")


@given(data=st.data())
def test_any_damage_gives_a_time_or_none(photo: Path, data: st.DataObject) -> None:
    head = bytearray(photo.read_bytes()[:300])
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(head) - 1), st.integers(0, 255)), max_size=8)):
        head[place] = value
    damaged = photo.with_name("damaged.jpg")
    damaged.write_bytes(head[: data.draw(st.integers(0, len(head)))])
    found = read_taken_time(damaged)
    assert found is None or isinstance(found, float)


def test_a_directory_of_many_large_tags_takes_no_time(tmp_path: Path) -> None:
    text, tags = b"2021:07:31 12:30:05\0", 4000
    values = 26 + 2 + 12 * tags + 4
    large = [struct.pack("<HHII", 0x1000 + tag, 5, 2000, values) for tag in range(tags - 1)]  # all of the same bytes
    entries = b"".join([*large, struct.pack("<HHII", 0x9003, 2, len(text), values)])
    body = b"II*\0" + struct.pack("<IHHHIII", 8, 1, 0x8769, 4, 1, 26, 0) + struct.pack("<H", tags) + entries + bytes(4)
    segment = b"Exif\0\0" + body + text + bytes(16_000)
    plain = io.BytesIO()
    Image.new("RGB", (8, 8)).save(plain, "JPEG")
    bomb = tmp_path / "bomb.jpg"
    start = b"\xff\xd8\xff\xe1" + struct.pack(">H", len(segment) + 2)
    bomb.write_bytes(start + segment + plain.getvalue()[2:])
    began = time.process_time()
    assert read_taken_time(bomb) == SECONDS
    assert time.process_time() - began < 1


def test_clues_have_the_cameras_time_or_else_that_of_the_file(photo: Path, tmp_path: Path) -> None:
    never = _save(tmp_path / "never.jpg", "0000:00:00 00:00:00")
    os.utime(never, (5.0, 1234.5))
    group_sources = read_file_sources(
        [photo, never, tmp_path / "gone.jpg"], groups=["a", None, None], hashes=["1", "2", "1"]
    )
    np.testing.assert_array_equal(group_sources.times, [SECONDS, 1234.5, np.nan])
    assert group_sources.given == ["a", None, None]
    assert group_sources.copies.tolist() == [0, 1, 0]
