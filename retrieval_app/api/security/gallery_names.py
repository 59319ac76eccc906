"""The name of a gallery among several of one server: in addresses, in the rights of tokens and in logs."""

from __future__ import annotations

import re

from index.errors import InputError

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


def check_gallery_name(name: str) -> str:
    """The name, if it may be one.

    Raises:
        InputError: it may not: it stands in addresses.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is no name of a gallery: expected 1 to 64 letters and digits of ASCII and . _ -, "
            "of which the first is a letter or digit, as in shop=photos/shop-gallery"
        )
    return name
