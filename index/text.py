"""Paths and other text of the outside, made safe to print and to store."""

from __future__ import annotations

import os


def printable_path(path: str) -> str:
    """A path that is safe to print: control characters and undecodable bytes are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in path)


def valid_text(path: str) -> str:
    r"""A path as Unicode that every encoder takes: undecodable bytes are shown as escapes, all else is kept.

    >>> valid_text(os.fsdecode(b"caf\xe9/1.jpg"))
    'caf\\xe9/1.jpg'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")
