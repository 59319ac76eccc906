"""When a photo was taken, from a JPEG's EXIF alone: Pillow's reader makes an object of each value of each tag."""

import struct
from datetime import UTC, datetime
from pathlib import Path

_HEAD_BYTES = 1 << 16  # of a file, where cameras write the EXIF segment
_EXIF = b"Exif\0\0"
_APP1, _START_OF_SCAN = 0xE1, 0xDA
_EXIF_DIRECTORY, _TAKEN = 0x8769, 0x9003  # DateTimeOriginal
_TEXT_BYTES = 19  # "2026:07:31 12:00:00"
_ENTRY_BYTES = 12


def read_taken_time(path: Path) -> float | None:
    """When a JPEG was taken by its EXIF, in seconds by the camera's clock as if it were UTC; None without a time."""
    try:
        with path.open("rb") as file:
            body = _find_exif(file.read(_HEAD_BYTES))
        order = {b"II": "<", b"MM": ">"}[body[:2]]
        (first,) = struct.unpack_from(order + "I", body, 4)
        at = _find_entry(body, _find_entry(body, first, _EXIF_DIRECTORY, order=order), _TAKEN, order=order)
        text = body[at : at + _TEXT_BYTES].decode("ascii")
        return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (OSError, struct.error, LookupError, ValueError):  # no photo, damaged, or without the tag
        return None


def _find_exif(head: bytes) -> bytes:
    at = 2
    while head.startswith(b"\xff\xd8") and head[at] == 0xFF and head[at + 1] != _START_OF_SCAN:
        (length,) = struct.unpack_from(">H", head, at + 2)
        if head[at + 1] == _APP1 and head.startswith(_EXIF, at + 4):
            return head[at + 4 + len(_EXIF) : at + 2 + length]
        at += 2 + length
    raise LookupError("no EXIF")


def _find_entry(body: bytes, start: int, wanted: int, *, order: str) -> int:
    """The offset in an entry of a directory: of another directory or a text."""
    (tags,) = struct.unpack_from(order + "H", body, start)
    for at in range(start + 2, start + 2 + tags * _ENTRY_BYTES, _ENTRY_BYTES):
        if struct.unpack_from(order + "H", body, at)[0] == wanted:
            return int(struct.unpack_from(order + "I", body, at + 8)[0])
    raise LookupError("no such tag")
