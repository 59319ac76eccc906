"""Files of little size that ask for much work: what a decoder would spend minutes or gigabytes on."""

import struct
import zlib
from collections.abc import Callable
from functools import partial

from PIL import Image

from tests.index.hostile import PHOTO, encode, png, with_orientation

_SHORT, _LONG, _RATIONAL = 3, 4, 5
_TIFF_TAGS = (  # of 100 x 100 pixels, three bytes each, packed by PackBits; what is added comes after, by number
    *((0x100, _SHORT, 1, 100), (0x101, _SHORT, 1, 100), (0x102, _SHORT, 1, 8), (0x103, _SHORT, 1, 32773)),
    *((0x106, _SHORT, 1, 2), (0x115, _SHORT, 1, 3)),
)


def tiff(*tags: tuple[int, int, int, int], rest: bytes = b"") -> bytes:
    """A TIFF of 100 x 100 pixels with more tags: number, type, count, and the value or where it lies."""
    entries = sorted((*_TIFF_TAGS, *tags))
    body = b"".join(struct.pack("<HHLL", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<LH", 8, len(entries)) + body + bytes(4) + rest


def tiff_of_one_tile(side: int) -> bytes:
    """100 x 100 pixels that lie in one tile of side x side."""
    return tiff((0x142, _LONG, 1, side), (0x143, _LONG, 1, side), (0x144, _LONG, 1, 8), (0x145, _LONG, 1, 40))


def tiff_of_many_strips(count: int) -> bytes:
    """100 x 100 pixels in far more strips than rows, all of them at the same bytes."""
    start = 8 + 2 + 12 * (len(_TIFF_TAGS) + 3) + 4
    offsets = struct.pack("<L", start) * count
    tags = (0x111, _LONG, count, start), (0x116, _LONG, 1, 1), (0x117, _LONG, count, start)
    return tiff(*tags, rest=offsets)


def tiff_of_many_tags(count: int, size_bytes: int) -> bytes:
    """Unknown tags that all have the same bytes for their value."""
    start = 8 + 2 + 12 * (len(_TIFF_TAGS) + count) + 4
    return tiff(*((0x9000 + n, 7, size_bytes, start) for n in range(count)), rest=bytes(size_bytes))


def jpeg_of_scans(side: int, count: int) -> bytes:
    """A progressive JPEG of one colour whose last scan is there again and again."""
    data = encode(Image.new("RGB", (side, side), "red"), "JPEG", progressive=True)
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:end] + data[last:end] * count + data[end:]


def padded_jpeg(size_bytes: int, *, before: bytes) -> bytes:
    """A JPEG with that many fill bytes before one of its markers."""
    data = encode(PHOTO, "JPEG")
    at = data.rindex(before)
    return data[:at] + b"\xff" * size_bytes + data[at:]


def gif_of_blocks(start: bytes, count: int, *, block: bytes) -> bytes:
    """A GIF with blocks before its first image: those of one extension, or many extensions where `start` is empty."""
    data = encode(PHOTO, "GIF")
    flags = data[10]
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    return data[:at] + start + block * count + (b"\0" if start else b"") + data[at:]


def gif_of_a_comment(size_bytes: int) -> bytes:
    """A GIF with one long comment."""
    return gif_of_blocks(b"!\xfe", size_bytes // 256, block=b"\xff" + b"c" * 255)


def gif_of_empty_extensions(count: int) -> bytes:
    """A GIF with many extensions that hold nothing; Pillow looks for a block after the end of an empty one."""
    return gif_of_blocks(b"", count, block=b"!\x01\0\0")


def png_of_chunks(count: int, *, name: bytes, body: bytes = b"") -> bytes:
    """An image of 8 x 8 pixels with many chunks before it."""
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    one = png([(name, body)])[8:]
    return png([(b"IHDR", header)]) + one * count + png([(b"IDAT", zlib.compress(bytes(9 * 8))), (b"IEND", b"")])[8:]


def png_of_prefixes(count: int) -> bytes:
    """An image whose EXIF begins again and again with what EXIF begins with."""
    return png_of_chunks(1, name=b"eXIf", body=b"Exif\0\0" * count)


def png_of_exif_tags(count: int, size_bytes: int) -> bytes:
    """An image with EXIF whose tags all have the same bytes for their value."""
    return png_of_chunks(1, name=b"eXIf", body=tiff_of_many_tags(count, size_bytes))


def jpeg_of_exif_tags() -> bytes:
    """A JPEG with as many tags as one segment holds, each of nearly all its bytes."""
    exif = b"Exif\0\0" + tiff_of_many_tags(2600, 32_000)
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + with_orientation(PHOTO, 6)[2:]


def jpeg_of_pictures(count: int, size_bytes: int) -> bytes:
    """A JPEG whose directory of further images has tags that all have the same numbers for their value."""
    directory = b"MPF\0" + directory_of_numbers(count, size_bytes, kind=_SHORT)
    return b"\xff\xd8\xff\xe2" + struct.pack(">H", len(directory) + 2) + directory + encode(PHOTO, "JPEG")[2:]


def directory_of_numbers(count: int, size_bytes: int, *, kind: int) -> bytes:
    """A directory whose tags all have the same bytes for their value; its first is the orientation."""
    start = 8 + 2 + 12 * count + 4
    values = size_bytes // {_SHORT: 2, _RATIONAL: 8}[kind]
    entries = (struct.pack("<HHLL", number, kind, values, start) for number in (0x112, *range(0x9000, 0x8FFF + count)))
    return b"II*\0" + struct.pack("<LH", 8, count) + b"".join(entries) + bytes(4) + b"\3\0\0\0" * (size_bytes // 4)


def webp_of_an_orientation(size_bytes: int) -> bytes:
    """A WebP whose EXIF has one tag of very many fractions."""
    exif = directory_of_numbers(1, size_bytes, kind=_RATIONAL)
    size = bytes(4) + b"".join((side - 1).to_bytes(3, "little") for side in PHOTO.size)
    body = b"WEBPVP8X" + struct.pack("<L", 10) + b"\x08" + size[1:] + encode(PHOTO, "WEBP")[12:]
    body += b"EXIF" + struct.pack("<L", len(exif)) + exif
    return b"RIFF" + struct.pack("<L", len(body)) + body


COSTLY: dict[str, Callable[[], bytes]] = {
    "one_tile.tif": partial(tiff_of_one_tile, 26_000),
    "large_tile.tif": partial(tiff_of_one_tile, 9_400),
    "strips.tif": partial(tiff_of_many_strips, 500_000),
    "tags.tif": partial(tiff_of_many_tags, 25_000, 8_000_000),
    "scans.jpg": partial(jpeg_of_scans, 4000, 5000),
    "padded_head.jpg": partial(padded_jpeg, 16_000_000, before=b"\xff\xc0"),
    "padded_end.jpg": partial(padded_jpeg, 16_000_000, before=b"\xff\xd9"),
    "comment.gif": partial(gif_of_a_comment, 16_000_000),
    "extensions.gif": partial(gif_of_empty_extensions, 4_000_000),
    "private.png": partial(png_of_chunks, 1_000_000, name=b"prVt"),
    "texts.png": partial(png_of_chunks, 500_000, name=b"tEXt", body=b"key\0text"),
    "prefixes.png": partial(png_of_prefixes, 1_000_000),
    "tags.png": partial(png_of_exif_tags, 25_000, 8_000_000),
    "tags.jpg": jpeg_of_exif_tags,
    "pictures.jpg": partial(jpeg_of_pictures, 2600, 30_000),
    "fractions.webp": partial(webp_of_an_orientation, 16_000_000),
}
"""File name to what gives its content, at most 16 MB each."""
