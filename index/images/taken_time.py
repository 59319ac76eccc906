"""When a photo was taken, from the head of a JPEG, without opening it as an image."""

import struct
from datetime import UTC, datetime
from pathlib import Path

from index.images.file_facts import TAKEN, read_exif

_HEAD_BYTES = 1 << 16  # of a file, where cameras write the EXIF segment
_EXIF = b"Exif\0\0"
_APP1, _START_OF_SCAN = 0xE1, 0xDA


def read_taken_time(path: Path) -> float | None:
    """When a JPEG was taken by its EXIF, in seconds by the camera's clock as if it were UTC; None without a time."""
    try:
        with path.open("rb") as file:
            found, _ = read_exif(_find_exif(file.read(_HEAD_BYTES)))
        return datetime.fromisoformat(found[TAKEN]).replace(tzinfo=UTC).timestamp()
    except (OSError, struct.error, LookupError):  # no photo, damaged, or without the tag
        return None


def _find_exif(head: bytes) -> bytes:
    at = 2
    while head.startswith(b"\xff\xd8") and head[at] == 0xFF and head[at + 1] != _START_OF_SCAN:
        (length,) = struct.unpack_from(">H", head, at + 2)
        if head[at + 1] == _APP1 and head.startswith(_EXIF, at + 4):
            return head[at + 4 + len(_EXIF) : at + 2 + length]
        at += 2 + length
    raise LookupError("no EXIF")
