"""Sites whose pages are let in, as they are named."""

from __future__ import annotations

import re
from collections.abc import Iterable

from index.errors import InputError
from index.text import printable_path

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[0-9a-z_-]+(\.[0-9a-z_-]+)*)(:[0-9]{1,5})?")


def check_origins(texts: Iterable[str]) -> frozenset[str]:
    """Origins as browsers write them.

    Raises:
        InputError: one of them is none.
    """
    return frozenset(map(_check_origin, texts))


def _check_origin(text: str) -> str:
    if text == "*":
        raise InputError("--cors-origin *: every site could ask this server; name those that may")
    origin = text.lower().removesuffix("/")
    if _ORIGIN.fullmatch(origin) is None:
        raise InputError(
            f"--cors-origin {printable_path(text)}: expected a site without a path, as https://app.example.org"
        )
    scheme, _, authority = origin.partition("://")
    return f"{scheme}://{authority.removesuffix(':443' if scheme == 'https' else ':80')}"
