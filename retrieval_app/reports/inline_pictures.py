"""Small pictures that stand in an HTML file."""

from __future__ import annotations

import base64
import io

from PIL import Image

from index.errors import ImageError
from index.images.image_files import REASONS, decode_image
from index.sources.items import Place
from index.sources.reading import CHANGED, read_indexed

QUALITY = 70
_REASONS = {**REASONS, CHANGED: "the file has changed since it was indexed"}


def draw_picture(place: Place, *, side: int) -> tuple[str, str]:
    """A WebP file in base64 of the bytes that a place expects, or why there is none."""
    try:
        picture = decode_image(read_indexed(place), name=place.name, target_side=side)
    except ImageError as error:
        return "", _REASONS[error.reason]
    return encode_picture(picture, side=side), ""


def encode_picture(image: Image.Image, *, side: int) -> str:
    """A WebP file in base64, its longest side no longer than `side` pixels."""
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, format="WEBP", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode("ascii")
