"""JPEG by simplejpeg where it is installed: the pixels that Pillow gives, in less time.

Both stand on libjpeg-turbo; Pillow asks it for a row at a time, in parts of the file. Whether they agree here is tried
once, as Pillow may be built on another libjpeg: what decodes a file must not show in its vector. A file on which
libjpeg has anything to remark is left to Pillow, so that what is damaged has one judge.
"""

from __future__ import annotations

import io
import logging
from functools import cache
from importlib.util import find_spec

from PIL import Image, ImageFile

JPEG = ("JPEG", "MPO")  # which Pillow's reader of JPEG gives
_MODES = ("RGB", "L")  # no CMYK, of which Pillow has its own conversion
_LEAST_SIDE = 8  # below it, several scales give the same size
_SCALES = (1, 2, 4, 8)
_TRIED_SIZE = (43, 37)  # no multiple of a block

logger = logging.getLogger(__name__)


@cache
def has_turbo() -> bool:
    """Whether simplejpeg is installed and decodes as Pillow does."""
    if find_spec("simplejpeg") is None:
        return False
    try:
        return all(map(_agrees, range(3)))
    except ImportError as error:
        logger.warning("simplejpeg is installed and cannot be loaded, so Pillow decodes JPEG files: %s", error)
        return False


def read_turbo(data: bytes, opened: ImageFile.ImageFile) -> Image.Image | None:
    """The pixels of a JPEG file at the size that Pillow, which has opened and not loaded it, would decode it at.

    Returns:
        The RGB image; None where Pillow is to decode it.
    """
    if opened.format not in JPEG or opened.mode not in _MODES or max(opened.size) < _LEAST_SIDE:
        return None
    return _read(data, opened.size) if has_turbo() else None


def _read(data: bytes, size: tuple[int, int]) -> Image.Image | None:
    from simplejpeg import decode_jpeg

    width, height = size
    try:  # of its scales the smallest that is no smaller: exactly the one that is asked for
        pixels = decode_jpeg(data, min_width=width, min_height=height)
    except (ValueError, MemoryError):
        return None
    return Image.fromarray(pixels) if pixels.shape[:2] == (height, width) else None


def _agrees(subsampling: int) -> bool:
    """Whether both decode a drawn file of one of Pillow's subsamplings alike, at every scale."""
    width, height = _TRIED_SIZE
    values, file = bytes(number * number % 251 for number in range(3 * width * height)), io.BytesIO()
    Image.frombytes("RGB", _TRIED_SIZE, values).save(file, "JPEG", quality=85, subsampling=subsampling)
    for scale in _SCALES:
        with Image.open(io.BytesIO(file.getvalue())) as image:
            image.draft(None, (image.width // scale, image.height // scale))
            found = _read(file.getvalue(), image.size)
            if found is None or found.tobytes() != image.convert("RGB").tobytes():
                return False
    return True
