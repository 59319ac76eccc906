"""Thumbnails and previews of a gallery's images: re-encoded pixels, never the original file."""

import io
import threading
from functools import partial
from typing import Any

from PIL import Image

from index.errors import ImageError
from index.gallery.gallery import Gallery
from index.images.decode import return_memory
from index.images.image_files import decode_image
from index.images.image_headers import is_cheap
from index.limits import MAX_PIXELS
from index.sources.reading import read_indexed
from retrieval_app.serving.errors import OutOfTurnError

SIDES = (64, 128, 256, 512)
PREVIEW_SIDE = 2048
LARGE_PIXELS = 16_000_000
_one_large = threading.Lock()
_QUALITY, _EFFORT = 80, 2  # of WebP; the next effort takes half as long again for 3 % fewer bytes


def choose_side(side: int) -> int:
    """The side of a thumbnail, of few different ones, so that the cache serves most."""
    return next((known for known in SIDES if known >= side), SIDES[-1])


def encode_image(
    gallery: Gallery,
    image_id: int,
    *,
    side: int = PREVIEW_SIDE,
    kind: str = "WEBP",
    max_pixels: int = MAX_PIXELS,
    cheap_only: bool = False,
) -> bytes:
    """An image of the gallery as WebP or JPEG of at most `side` pixels a side, without metadata."""
    name, data = read_original(gallery, image_id)
    image = decode_in_turn(data, name=name, target_side=side, max_pixels=max_pixels, cheap_only=cheap_only)
    if kind == "WEBP":
        return encode_small(image, side=side, format=kind, quality=_QUALITY, method=_EFFORT)
    return encode_small(image, side=side, format=kind, quality=90)


def encode_small(image: Image.Image, *, side: int, **options: Any) -> bytes:
    """An image of at most `side` pixels a side, without metadata; the options are Pillow's, `format` among them."""
    image.thumbnail((side, side))
    image.info.clear()  # else a file's comment and colour profile, of another mode, would be written too
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def decode_in_turn(
    data: bytes, *, name: str, target_side: int, max_pixels: int = MAX_PIXELS, cheap_only: bool = False
) -> Image.Image:
    """As `index.images.image_files.decode_image`; of images that take much memory one at a time.

    With `cheap_only` an OutOfTurnError where it has many pixels, or its headers do not prove that it is cheap.
    """
    if cheap_only and not is_cheap(data):
        raise OutOfTurnError(name)
    decode = partial(decode_image, data, name=name, target_side=target_side)
    if max_pixels <= LARGE_PIXELS:
        return decode(max_pixels=max_pixels)
    try:
        return decode(max_pixels=LARGE_PIXELS)
    except ImageError as error:
        if error.reason != "too-many-pixels":
            raise
    if cheap_only:
        raise OutOfTurnError(name)
    with _one_large:
        image = decode(max_pixels=max_pixels)
        return_memory()
        return image


def read_original(gallery: Gallery, image_id: int) -> tuple[str, bytes]:
    """Name and bytes of the original file, which is decoded and never sent."""
    place = gallery.place(image_id)
    return place.name, read_indexed(place)
