"""Decoding an image file to upright, opaque RGB in this process, at no bounded cost: see `image_files.decode_image`."""

import ctypes
import io
import struct
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from index.errors import ImageError
from index.images.file_facts import read_facts

# HEIC, the photos of iPhones, is read by pillow-heif. The package is an extra, because the HEVC coder in its wheels is
# under the GPL. Its Pillow plugin is not registered, so that the rest of the process does not accept HEIC.
HEIF = "HEIC"
_CODED = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")  # brands of HEVC
_CONTAINERS = (b"mif1", b"msf1")  # brands of AVIF or HEVC; compatible brands tell which
_MAX_BRANDS_BYTES = 256
_JPEG = ("JPEG", "MPO")  # formats of Pillow's JPEG reader

# Stereo images (MPO) come through Pillow's JPEG reader and may not be listed here.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
READABLE = (*FORMATS, HEIF)
_SUFFIXES = {"JPEG": "jpg", "TIFF": "tif"}  # of other formats their own name
FIRST_BYTES = 16  # which identify the format
_STRIP_PIXELS = 1 << 22  # converted at once, so that no second whole image is held
_TILE_WIDTH, _TILE_LENGTH = 0x0142, 0x0143
_ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TURNED = (5, 6, 7, 8)  # that swap width and height
# Errors of Pillow's parsers on damaged input. Anything else is a bug of ours and must surface.
_DAMAGE = (OSError, SyntaxError, ValueError, TypeError, RuntimeError, EOFError, IndexError, struct.error)
_ORIGINAL, _FACTS = "original", "facts"  # keys of `Image.info`
# The brightness quantisation table of libjpeg, and the sums of its tables by quality, from 1 to 100.
_TABLE_ROWS = (
    "16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55",
    "14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 62",
    "18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92",
    "49 64 78 87 103 121 120 101 72 92 95 98 112 100 103 99",
)
_TABLE = [int(step) for row in _TABLE_ROWS for step in row.split()]
_SCALES_BY_QUALITY = [5000 // quality if quality < 50 else 200 - 2 * quality for quality in range(1, 101)]
_TABLE_SUMS = [sum(min(max((step * scale + 50) // 100, 1), 255) for step in _TABLE) for scale in _SCALES_BY_QUALITY]


Original = tuple[int, int, int]
"""Width and height in pixels of the upright image in its file, and its JPEG quality, 1 to 100; 0 of other files."""


def find_original(image: Image.Image) -> Original:
    """The `Original` of a decoded image, which is often smaller."""
    original: Original = image.info[_ORIGINAL]
    return original


def find_facts(image: Image.Image) -> Mapping[str, Any]:
    """What the file of a decoded image says of itself; see `index.images.file_facts`."""
    facts: Mapping[str, Any] = image.info[_FACTS]
    return facts


def keep_original(image: Image.Image, original: Original, facts: Mapping[str, Any]) -> Image.Image:
    """The image, whose `find_original` is `original`, and `find_facts` is `facts`."""
    image.info = {_ORIGINAL: original, _FACTS: facts}
    return image


def is_heif(first: bytes) -> bool:
    """Whether a file that begins with these bytes, 12 or more, is coded by HEVC."""
    if first[4:8] != b"ftyp":
        return False
    if first[8:12] in _CODED:
        return True
    brands = first[16 : min(int.from_bytes(first[:4], "big"), _MAX_BRANDS_BYTES)]
    known = {brands[at : at + 4] for at in range(0, len(brands), 4)}
    return first[8:12] in _CONTAINERS and not known.isdisjoint(_CODED)


@cache
def has_decoder() -> bool:
    return find_spec("pillow_heif") is not None


def decoder_version() -> str:
    """The version of pillow-heif; `nothing` where it is not installed."""
    if not has_decoder():
        return "nothing"
    from importlib.metadata import version  # slow to import

    return version("pillow-heif")


def require_decoder(name: str) -> None:
    """Refuse a HEIC photo where nothing can decode it."""
    if not has_decoder():
        raise ImageError(name, "needs-package", "a HEIC photo, which needs pillow-heif: pip install pillow-heif")


def open_heif(data: bytes, *, name: str) -> ImageFile.ImageFile:
    """A HEIC file's main image, not yet decoded; the decoder turns it upright."""
    require_decoder(name)
    from pillow_heif import HeifImageFile, options

    options.DECODE_THREADS = 1  # each thread reserves memory
    image: ImageFile.ImageFile = HeifImageFile(io.BytesIO(data))  # type: ignore[no-untyped-call]
    return image


def find_format(first: bytes) -> str | None:
    """The first of `READABLE` whose files begin with these bytes, `FIRST_BYTES` of them or more."""
    if is_heif(first):
        return HEIF
    if any(kind not in Image.OPEN for kind in FORMATS):
        from PIL import (  # noqa: F401  # of Pillow's forty plugins
            AvifImagePlugin,
            BmpImagePlugin,
            GifImagePlugin,
            JpegImagePlugin,
            PngImagePlugin,
            TiffImagePlugin,
            WebPImagePlugin,
        )
    for kind in FORMATS:
        accepts = Image.OPEN[kind][1]  # gives a text where Pillow was built without the format
        if accepts is None or accepts(first[:FIRST_BYTES]):
            return kind
    return None


def suffix_of(first: bytes) -> str:
    """The suffix of a file that begins with these bytes, without a dot; `bin` for no image."""
    kind = find_format(first) or "bin"
    return _SUFFIXES.get(kind, kind.lower())


def decode_here(data: bytes, *, name: str, target_side: int, max_pixels: int) -> Image.Image:
    """Decode an image in this process; see `index.images.image_files.decode_image`."""
    if not data:
        raise ImageError(path=name, reason="empty-file", detail="0 bytes")
    limits = {"target_side": target_side, "max_pixels": max_pixels}
    return _name_damage(lambda: _decode(data, name=name, **limits), name=name)


def _name_damage(make: Callable[[], Image.Image], *, name: str) -> Image.Image:
    """Turn Pillow's errors into ImageErrors."""
    try:
        return make()
    except UnidentifiedImageError:
        reason, detail = "not-an-image", f"none of {', '.join(READABLE)}"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason, detail = "too-many-pixels", str(error)
    except _DAMAGE as error:
        reason, detail = "corrupt", str(error) or type(error).__name__
    raise ImageError(path=name, reason=reason, detail=detail)  # outside of `except`: without Pillow's frames


def return_memory() -> None:
    """Return freed memory of the C library to the system: after Pillow, hundreds of megabytes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _decode(data: bytes, *, name: str, target_side: int, max_pixels: int) -> Image.Image:
    image = open_heif(data, name=name) if is_heif(data) else Image.open(io.BytesIO(data), formats=FORMATS)
    with image:
        _check_pixels(image, name=name, max_pixels=max_pixels)
        size = image.size
        image.draft(None, (2 * target_side, 2 * target_side))
        if image.format in _JPEG:  # in one block: with n blocks, padding would be read n times
            image.decodermaxblock = max(len(data), image.decodermaxblock)
        image.load()
        rgb = _to_rgb(image, name=name, target_side=target_side)
        orientation = _orientation(image)
        quality, facts = _estimate_quality(image), read_facts(image, data)
    del image  # before the turned copy is made
    width, height = size[::-1] if orientation in _TURNED else size
    return keep_original(_turn_upright(rgb, orientation), (width, height, quality), facts)


def make_upright(image: Image.Image, *, name: str, target_side: int, max_pixels: int) -> Image.Image:
    """Upright RGB image of an open image of any mode; see `decode_here`."""
    if not image.width or not image.height:
        raise ImageError(path=name, reason="corrupt", detail=f"{image.width} x {image.height} pixels")
    _check_pixels(image, name=name, max_pixels=max_pixels)

    def convert() -> Image.Image:
        return _turn_upright(_to_rgb(image, name=name, target_side=target_side), _orientation(image))

    return _name_damage(convert, name=name)


def _check_pixels(image: Image.Image, *, name: str, max_pixels: int) -> None:
    """Refuse an image, or a TIFF tile, of too many pixels by its header."""
    announced = {"pixels": image.size}
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        width, length = image.tag_v2.get(_TILE_WIDTH), image.tag_v2.get(_TILE_LENGTH)
        if isinstance(width, int) and isinstance(length, int):
            announced["pixels in a tile"] = width, length
    for what, (width, height) in announced.items():
        if width * height > max_pixels:
            raise ImageError(name, "too-many-pixels", f"{width} x {height} {what}, at most {max_pixels} are decoded")


def _estimate_quality(image: Image.Image) -> int:
    """The quality of libjpeg whose brightness table has the nearest sum; 0 without a table."""
    table = getattr(image, "quantization", {}).get(0)
    if not table:
        return 0
    total = sum(table)
    return 1 + min(range(100), key=lambda place: (abs(_TABLE_SUMS[place] - total), -place))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _DAMAGE:
        return 1  # damaged EXIF: the image is used as stored


def _turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    transpose = _ORIENTATIONS.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def _to_rgb(image: Image.Image, *, name: str, target_side: int) -> Image.Image:
    """An opaque RGB copy, reduced by `_find_factor`."""
    if image.mode == "F":
        raise ImageError(path=name, reason="unsupported-pixels", detail="32-bit floating point")
    wide = image.mode.startswith("I;") or (image.mode == "I" and image.getextrema()[1] > 255)  # type: ignore[operator]
    width, height = image.size
    factor = _find_factor(image, target_side=target_side)
    rows = max(1, _STRIP_PIXELS // max(1, width) // factor) * factor
    if rows >= height:
        return _reduce(_convert(image, wide=wide), factor)
    result = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    for top in range(0, height, rows):  # in strips, not to hold the whole image in several modes
        strip = image.crop((0, top, width, min(top + rows, height)))
        result.paste(_reduce(_convert(strip, wide=wide), factor), (0, top // factor))
    return result


def _find_factor(image: Image.Image, *, target_side: int) -> int:
    """The largest whole factor that leaves both sides twice the target."""
    return max(1, min(image.size) // (2 * target_side))


def _reduce(image: Image.Image, factor: int) -> Image.Image:
    return image if factor == 1 else image.reduce(factor)


def _convert(image: Image.Image, *, wide: bool) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to white
        import numpy as np  # seldom needed, and slow to import in a worker

        values = np.asarray(image)
        grey = (values >> 8 if wide else values).clip(0, 255).astype(np.uint8)
        return Image.fromarray(grey, mode="L").convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
