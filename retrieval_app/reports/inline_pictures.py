"""Small pictures that stand in an HTML file."""

from __future__ import annotations

import base64
import io

from PIL import Image

QUALITY = 70


def encode_picture(image: Image.Image, *, side: int) -> str:
    """A WebP file in base64, its longest side no longer than `side` pixels."""
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, format="WEBP", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode("ascii")
