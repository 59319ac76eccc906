"""What a token of a server may be."""

from __future__ import annotations

import re

from index.errors import InputError

_TOKEN = re.compile(r"[!-~]{8,512}")


def check_token(text: str) -> None:
    """Raise InputError where a text is too easily guessed, or no header can carry it."""
    if not _TOKEN.fullmatch(text):
        raise InputError("a token has 8 to 512 characters of ASCII, and no spaces; this one has not")
