"""Thumbnails, and the decoding of photos one after the other."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from PIL import Image

from index.errors import ImageError
from index.gallery.gallery import Gallery
from retrieval_app.serving import photos
from retrieval_app.serving.photos import decode_in_turn


def _encode(size: tuple[int, int], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, format=kind)
    return file.getvalue()


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "LARGE_PIXELS", 10_000)
    decode, inside, most = photos.decode_image, list[int](), list[int]()
    small_is_done = threading.Event()

    def watch(data: bytes, *, max_pixels: int, **options: Any) -> Image.Image:
        image = decode(data, max_pixels=max_pixels, **options)  # refused here where it is large and not its turn
        if max_pixels > 10_000:
            inside.append(1)
            most.append(len(inside))
            assert small_is_done.wait(20)
            inside.pop()
        return image

    monkeypatch.setattr(photos, "decode_image", watch)
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
    image = Image.open(io.BytesIO(photos.encode_image(gallery, ids["red/0.jpg"], side=64)))
    assert (image.format, max(image.size) <= 64) == ("WEBP", True)
    assert not {"exif", "icc_profile", "comment"} & set(image.info)
