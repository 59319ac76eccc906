"""The time when a photo was taken, from the EXIF segment of a JPEG file; nothing is decoded."""

import struct
from datetime import UTC, datetime
from pathlib import Path

_HEAD_BYTES = 1 << 16  # must have the EXIF segment, which cameras write first
_EXIF = b"Exif\0\0"
_APP1, _START_OF_SCAN = 0xE1, 0xDA
_EXIF_DIRECTORY, _TAKEN = 0x8769, 0x9003  # DateTimeOriginal
_TEXT_BYTES = 19  # "2026:07:31 12:00:00"
_ENTRY_BYTES = 12


def read_taken_time(path: Path) -> float | None:
    """Seconds, by the camera's clock as if it were UTC; None without one."""
    try:
        with path.open("rb") as file:
            return parse_taken_time(file.read(_HEAD_BYTES))
    except (OSError, ValueError):
        return None


def parse_taken_time(head: bytes) -> float | None:
    """`read_taken_time` of the first bytes of a file."""
    try:
        directory = _find_exif(head)
        if directory is None:
            return None
        order = {b"II": "<", b"MM": ">"}[directory[:2]]
        first = struct.unpack_from(order + "I", directory, 4)[0]
        at = _find_entry(directory, first, _EXIF_DIRECTORY, order=order)
        at = None if at is None else _find_entry(directory, at, _TAKEN, order=order)
        if at is None:
            return None
        text = directory[at : at + _TEXT_BYTES].decode("ascii")
        return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (struct.error, IndexError, KeyError, ValueError):  # damaged
        return None


def _find_exif(head: bytes) -> bytes | None:
    if not head.startswith(b"\xff\xd8"):
        return None
    at = 2
    while head[at] == 0xFF and head[at + 1] != _START_OF_SCAN:
        (length,) = struct.unpack_from(">H", head, at + 2)
        if head[at + 1] == _APP1 and head.startswith(_EXIF, at + 4):
            return head[at + 4 + len(_EXIF) : at + 2 + length]
        at += 2 + length
    return None


def _find_entry(directory: bytes, start: int, wanted: int, *, order: str) -> int | None:
    """The offset in an entry of a directory or a text."""
    (count,) = struct.unpack_from(order + "H", directory, start)
    for number in range(count):
        at = start + 2 + number * _ENTRY_BYTES
        if struct.unpack_from(order + "H", directory, at)[0] == wanted:
            return int(struct.unpack_from(order + "I", directory, at + 8)[0])
    return None
