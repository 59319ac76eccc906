"""Photos that can be asked with again: kept up to a size, and shared by the processes of a server."""

import io
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index.errors import ImageError
from index.gallery.gallery import Gallery
from retrieval_app.serving import thumbnails
from retrieval_app.serving.photos import KeptPhotos, Photo
from retrieval_app.serving.shared_table import SharedTable
from retrieval_app.serving.thumbnails import decode_in_turn


def _encode(size: tuple[int, int], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, format=kind)
    return file.getvalue()


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thumbnails, "LARGE_PIXELS", 10_000)
    decode, inside, most = thumbnails.decode_image, list[int](), list[int]()
    small_is_done = threading.Event()

    def watch(data: bytes, *, max_pixels: int, **options: Any) -> Image.Image:
        image = decode(data, max_pixels=max_pixels, **options)  # refused here where it is large and not its turn
        if max_pixels > 10_000:
            inside.append(1)
            most.append(len(inside))
            assert small_is_done.wait(20)
            inside.pop()
        return image

    monkeypatch.setattr(thumbnails, "decode_image", watch)
    with ThreadPoolExecutor(4) as pool:
        large = [pool.submit(decode_in_turn, _encode((200, 100)), name="large", target_side=64) for _ in range(3)]
        small = pool.submit(decode_in_turn, _encode((50, 40)), name="small", target_side=64)
        assert small.result(20).size == (50, 40)
        small_is_done.set()
        assert {future.result(20).size for future in large} == {(200, 100)}
    assert most == [1, 1, 1]


def test_the_cap_holds_for_large_images_too() -> None:
    with pytest.raises(ImageError, match="at most 20000000"):
        decode_in_turn(_encode((5000, 4001)), name="huge", target_side=64, max_pixels=20_000_000)
    with pytest.raises(ImageError, match="at most 100"):
        decode_in_turn(_encode((50, 40)), name="small", target_side=64, max_pixels=100)


def test_pictures_say_nothing_of_the_file_they_came_from(gallery: Gallery, ids: dict[str, int]) -> None:
    image = Image.open(io.BytesIO(thumbnails.encode_image(gallery, ids["red/0.jpg"], side=64)))
    assert (image.format, max(image.size) <= 64) == ("WEBP", True)
    assert not {"exif", "icc_profile", "comment"} & set(image.info)


VECTOR = np.array([0.6, 0.8], dtype=np.float32)


def make_photo(token: str, *, picture_bytes: int = 92) -> Photo:
    return Photo(token, f"{token}.jpg", 3, 2, b"x" * picture_bytes, VECTOR, "0" * 64)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "photos.sqlite" if request.param == "file" else None


def test_a_photo_comes_back_as_it_was(path: Path | None) -> None:
    kept, photo = KeptPhotos(1000, path=path), make_photo("a")
    kept.put(photo)
    found = kept.get("a")
    assert found is not None
    assert (found.token, found.name, found.width, found.height) == ("a", "a.jpg", 3, 2)
    assert (found.jpeg, found.model_sha256) == (photo.jpeg, photo.model_sha256)
    np.testing.assert_array_equal(found.vector, VECTOR)
    assert found.vector.dtype == np.float32
    assert kept.get("b") is None


def test_those_that_were_not_used_for_longest_are_forgotten(path: Path | None) -> None:
    kept = KeptPhotos(300, path=path, noted_s=0)  # three of 92 and 8 bytes
    for token in "abc":
        kept.put(make_photo(token))
    assert kept.get("a") is not None
    kept.put(make_photo("d"))
    assert [token for token in "abcd" if kept.get(token) is not None] == ["a", "c", "d"]
    assert len(kept) == 3
    kept.put(make_photo("e", picture_bytes=400))  # larger than all that there is room for
    assert len(kept) == 0


def test_what_one_process_keeps_another_finds(tmp_path: Path) -> None:
    one, other = (KeptPhotos(1000, path=tmp_path / "photos.sqlite") for _ in range(2))
    one.put(make_photo("a"))
    assert other.get("a") is not None
    assert len(other) == 1
    other.put(make_photo("b", picture_bytes=980))
    assert one.get("a") is None


def test_a_table_that_another_process_begins_at_this_moment_is_waited_for(tmp_path: Path) -> None:
    path, connect = tmp_path / "shared.sqlite", partial(sqlite3.connect, isolation_level=None, check_same_thread=False)
    with closing(connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(0.2, other.execute, ["COMMIT"])
        ending.start()
        table = SharedTable(path, "CREATE TABLE IF NOT EXISTS numbers (number INTEGER)")
        ending.join()
    with table.reading() as connection:
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (0,)
