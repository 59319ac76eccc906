"""Text: printable paths, valid Unicode, aligned tables, sizes and command lines."""

import os
import shlex
import unicodedata
from collections.abc import Mapping, Sequence

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def printable_path(path: object) -> str:
    """A path that is safe to print: control characters and undecodable bytes are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in str(path))


def valid_text(path: str) -> str:
    r"""A path as valid Unicode: undecodable bytes are escaped.

    >>> valid_text(os.fsdecode(b"caf\xe9/1.jpg"))
    'caf\\xe9/1.jpg'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def clean_line(text: str) -> str:
    """A text in NFC, with single spaces, and without control characters, marks of direction and lone surrogates."""
    text = unicodedata.normalize("NFC", text)
    if not text.isprintable():
        text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join(text.split())


def hide_folder(path: str) -> str:
    """The path of an image, without its folder where it is absolute."""
    return os.path.basename(path) if os.path.isabs(path) else path


def align(rows: Sequence[tuple[str, ...]], *, right: set[int]) -> list[str]:
    """Rows as lines of aligned columns; those in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def show_bytes(count: int) -> str:
    """A size for people, 1 MB being 10^6 bytes."""
    size, unit = float(count), 0
    while size >= 999.5 and unit + 1 < len(_UNITS):
        size, unit = size / 1000, unit + 1
    return f"{size:.{0 if unit == 0 or size >= 99.5 else 1}f} {_UNITS[unit]}"


def command_line(name: str, gallery: object, options: Mapping[str, str | None] | None = None) -> str:
    """A command of `retrieval index`, for messages."""
    words = [word for flag, value in (options or {}).items() if value is not None for word in (flag, value)]
    return printable_path(shlex.join(["retrieval", "index", name, str(gallery), *words]))


def count_images(count: int) -> str:
    """A number of images in words: `1 image`, `2,000 images`."""
    return f"{count:,} {'image' if count == 1 else 'images'}"
