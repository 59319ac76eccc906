"""Sent photos, which are kept for a while, and their crops; thumbnails and previews of a gallery's images."""

import io
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image
from pydantic import Field, model_validator

from index.arrays import Vectors
from index.errors import ImageError, InputError
from index.gallery.gallery import Gallery
from index.images.decode import return_memory
from index.images.image_files import decode_image
from index.images.image_headers import is_cheap
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.limits import MAX_PIXELS
from index.sources.reading import read_indexed
from retrieval_app.insights.answer import Body
from retrieval_app.serving.errors import OutOfTurnError

KEPT_SIDE = 1024  # pixels, enough for a crop of a quarter at the usual model inputs
_JPEG_QUALITY = 92
_LEAST_CROP_PIXELS = 8
SIDES = (64, 128, 256, 512)
PREVIEW_SIDE = 2048
LARGE_PIXELS = 16_000_000
_one_large = threading.Lock()
_QUALITY, _EFFORT = 80, 2  # quality and effort of WebP; the next effort takes 1.5 times as long for 3 % fewer bytes


class Crop(Body):
    """Region of an image, as shares of its width and height from the upper left corner."""

    x: float = Field(ge=0, lt=1)
    y: float = Field(ge=0, lt=1)
    width: float = Field(gt=0, le=1)
    height: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _lies_inside(self) -> "Crop":
        if max(self.x + self.width, self.y + self.height) > 1.0001:
            raise ValueError("a crop is x, y, width and height in 0..1 within the image")
        return self

    def apply(self, image: Image.Image, *, name: str) -> Image.Image:
        """The crop of an image."""
        width, height = image.size
        left, top = round(self.x * width), round(self.y * height)
        right = min(width, round((self.x + self.width) * width))
        bottom = min(height, round((self.y + self.height) * height))
        if min(right - left, bottom - top) < _LEAST_CROP_PIXELS:
            raise InputError(
                f"{name}: the crop has {max(0, right - left)} x {max(0, bottom - top)} pixels, at least "
                f"{_LEAST_CROP_PIXELS} a side are needed; choose a larger part"
            )
        return image.crop((left, top, right, bottom))


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes of a sent photo, which is not kept, with its name for messages."""

    data: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Photo:
    """Kept photo: a JPEG of at most about `KEPT_SIDE` pixels, and its (D,) float32 unit `vector`."""

    token: str
    name: str
    width: int
    height: int
    jpeg: bytes
    vector: Vectors
    model_sha256: str

    @property
    def kept_bytes(self) -> int:
        """Size of the photo in the memory for kept photos."""
        return len(self.jpeg) + self.vector.nbytes


def read_pixels(
    data: bytes,
    *,
    name: str,
    preprocess: PreprocessConfig,
    max_pixels: int,
    crop: Crop | None = None,
    cheap_only: bool = False,
) -> Pixels:
    """(crop, crop, 3) uint8 model input of a photo or of its crop, decoded like the gallery's images."""
    side = preprocess.resize if crop is None else KEPT_SIDE
    image = decode_in_turn(data, name=name, target_side=side, max_pixels=max_pixels, cheap_only=cheap_only)
    return preprocess_image(image if crop is None else crop.apply(image, name=name), preprocess)


def encode_kept(data: bytes, *, name: str, max_pixels: int, cheap_only: bool = False) -> tuple[bytes, tuple[int, int]]:
    """JPEG of a photo to keep, and its (width, height)."""
    image = decode_in_turn(data, name=name, target_side=KEPT_SIDE // 2, max_pixels=max_pixels, cheap_only=cheap_only)
    return encode_small(image, side=KEPT_SIDE, format="JPEG", quality=_JPEG_QUALITY), image.size


def choose_side(side: int) -> int:
    """Side of a thumbnail, rounded up to one of `SIDES`, so that the cache serves most requests."""
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
    """Image of the gallery as WebP or JPEG of at most `side` pixels a side, without metadata."""
    name, data = read_original(gallery, image_id)
    image = decode_in_turn(data, name=name, target_side=side, max_pixels=max_pixels, cheap_only=cheap_only)
    if kind == "WEBP":
        return encode_small(image, side=side, format=kind, quality=_QUALITY, method=_EFFORT)
    return encode_small(image, side=side, format=kind, quality=90)


def encode_small(image: Image.Image, *, side: int, **options: Any) -> bytes:
    """Encoded image of at most `side` pixels a side, without metadata; `options` are Pillow's, with `format`."""
    image.thumbnail((side, side))
    image.info.clear()  # else a file's comment and colour profile, of another mode, would be written too
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def decode_in_turn(
    data: bytes, *, name: str, target_side: int, max_pixels: int = MAX_PIXELS, cheap_only: bool = False
) -> Image.Image:
    """Decode an image, large ones one at a time; with `cheap_only` an OutOfTurnError for costly images."""
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
