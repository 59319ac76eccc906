"""Proof by headers that a JPEG, PNG or WebP decodes cheaply: few pixels, scans, blocks and bytes of metadata.

What is unclear or of a rare format is not proven: it takes the slower way, in a process that can be killed.
"""

import struct
from itertools import count

_MAX_PIXELS = 24_000_000  # at most 0.2 GB and half a second in any of the formats below
_MAX_SCANNED_PIXELS = 400_000_000  # pixels times scans, each of which passes over all of them: half a second
_MAX_METADATA_BYTES = 1 << 22
_MAX_SEGMENTS = 256  # of a JPEG, before its first scan
_MAX_CHUNKS = 64  # of a PNG or WebP, without those that hold pixels
_MAX_PIXEL_CHUNKS = 1 << 14
_MAX_TAGS = 256  # of a directory of metadata
_MAX_TAG_VALUES = 1 << 16  # in all its tags, each of which Pillow may make an object of Python

_SEQUENTIAL, _PROGRESSIVE, _START_OF_SCAN = (0xC0, 0xC1), 0xC2, 0xDA
# Lossless, layered, arithmetic coding.
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
_WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA), 0xFF)
# What a directory begins with: of a camera, and of several images in one file.
_EXIF, _MPF = b"Exif\0\0", b"MPF\0"


def is_cheap(data: bytes) -> bool:
    """Whether decoding an image file takes little time and memory."""
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _is_cheap_jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _is_cheap_png(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _is_cheap_webp(data)
    except (struct.error, IndexError):  # the file is cut short
        return False
    return False


def _is_cheap_jpeg(data: bytes) -> bool:
    """One pass over the pixels, or few enough; little metadata, without padding, and each directory in one piece."""
    at, layers, pixels, is_sequential, known = 2, 0, 0, False, set[bytes]()
    for number in count():
        marker = data[at + 1]
        if data[at] != 0xFF or marker in _WITHOUT_LENGTH or marker in _OTHER_FRAMES or number > _MAX_SEGMENTS:
            return False
        (length,) = struct.unpack_from(">H", data, at + 2)
        if marker == _START_OF_SCAN:
            break
        if marker in _SEQUENTIAL or marker == _PROGRESSIVE:
            if layers:
                return False
            height, width, layers = struct.unpack_from(">HHB", data, at + 5)
            pixels, is_sequential = width * height, marker in _SEQUENTIAL
        for start in (_EXIF, _MPF):
            if marker in (0xE1, 0xE2) and data.startswith(start, at + 4):
                if start in known or not _is_plain_directory(data[at + 4 + len(start) : at + 2 + length]):
                    return False
                known.add(start)
        at += 2 + length
    if at > _MAX_METADATA_BYTES or not layers:
        return False
    if is_sequential and data[at + 4] == layers:
        return True  # its one scan holds all layers, and libjpeg takes no other after it
    scans = data.count(b"\xff\xda")  # or more: bytes of metadata can look like one, those of pixels cannot
    return pixels <= _MAX_PIXELS and pixels * scans <= _MAX_SCANNED_PIXELS


def _is_cheap_png(data: bytes) -> bool:
    """Few chunks, no animation, and no EXIF hidden in a text."""
    if data[12:16] != b"IHDR":
        return False
    width, height = struct.unpack_from(">LL", data, 16)
    at, others, pixel_chunks, metadata = 8, 0, 0, 0
    while width * height <= _MAX_PIXELS and at + 8 <= len(data):
        length, name = struct.unpack_from(">L4s", data, at)
        if name == b"IDAT":
            pixel_chunks += 1
        else:
            others += 1
            metadata += length
        if others > _MAX_CHUNKS or pixel_chunks > _MAX_PIXEL_CHUNKS or metadata > _MAX_METADATA_BYTES:
            return False
        if name in (b"acTL", b"fcTL", b"fdAT") or (name == b"IHDR" and others > 1):
            return False
        if name in (b"tEXt", b"zTXt", b"iTXt") and data.startswith(b"Raw profile", at + 8):
            return False
        if name == b"eXIf" and not _is_plain_directory(data[at + 8 : at + 8 + length].removeprefix(_EXIF)):
            return False
        if name == b"IEND":
            return True
        at += 12 + length
    return bool(width * height <= _MAX_PIXELS)  # cut short: the decoder stops there too


def _is_cheap_webp(data: bytes) -> bool:
    """Whether a WebP is lossy, opaque and still; its header does not tell what lossless coding or alpha costs."""
    at, metadata, pixels = 12, 0, 0
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(data):
            break
        name, length = struct.unpack_from("<4sL", data, at)
        if name == b"VP8 ":
            width, height = struct.unpack_from("<HH", data, at + 14)
            pixels = max(pixels, (width & 0x3FFF) * (height & 0x3FFF))
        elif name == b"VP8X":
            sizes = data[at + 12 : at + 18]
            width, height = int.from_bytes(sizes[:3], "little") + 1, int.from_bytes(sizes[3:], "little") + 1
            pixels = max(pixels, width * height)
        elif name in (b"ICCP", b"XMP "):
            metadata += length
        elif name != b"EXIF" or not _is_plain_directory(data[at + 8 : at + 8 + length].removeprefix(_EXIF)):
            return False
        at += 8 + length + length % 2
    return 0 < pixels <= _MAX_PIXELS and metadata <= _MAX_METADATA_BYTES and at >= len(data)


def _is_plain_directory(body: bytes) -> bool:
    """Whether a directory has few tags of few values in all; each may point at the same bytes again."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(body[:4])
    if order is None:
        return False
    (start,) = struct.unpack_from(order + "L", body, 4)
    (tags,) = struct.unpack_from(order + "H", body, start)
    if tags > _MAX_TAGS:
        return False
    values = sum(int(struct.unpack_from(order + "L", body, start + 6 + 12 * tag)[0]) for tag in range(tags))
    return values <= _MAX_TAG_VALUES
