"""Addresses of http and https as texts: which ones are asked at all, and where an answer leads on to."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from index.errors import InputError
from index.network.public_addresses import PORTS
from index.text import printable_path

MAX_ADDRESS_CHARACTERS = 2048
REDIRECTS = (301, 302, 303, 307, 308)
_RESERVED = "%/:?#[]@!$&'()*+,;=~"


def check_web_address(address: str) -> None:
    """See that a text is a plain address of http or https.

    Raises:
        InputError: it is none, is too long, or has a name or password in it.
    """
    if len(address) > MAX_ADDRESS_CHARACTERS:
        raise InputError(f"an address of {len(address)} characters; at most {MAX_ADDRESS_CHARACTERS} are taken")
    try:
        parts = urlsplit(address)
        is_usual = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
        is_plain = address.isascii() and address.isprintable() and " " not in address
    except ValueError:
        is_usual = is_plain = False
    if not is_usual or not is_plain:
        raise refuse_address(address, "expected the address of a picture, such as https://example.org/photo.jpg")
    if parts.username is not None or parts.password is not None:
        raise InputError("an address with a name or password in it is not asked")


def lead_on(address: str, location: str) -> str:
    """Where an answer leads; letters that addresses do not have, but some servers send, are written as they do.

    Raises:
        InputError: to what is no address.
    """
    with suppress(UnicodeError):
        location = location.encode("latin-1").decode("utf-8")
    try:
        return urljoin(address, quote(location, safe=_RESERVED))
    except ValueError as error:
        raise refuse_address(address, "it leads on to what is no address") from error


def as_written(address: str) -> str:
    """An address in the letters that addresses have: spaces and other letters are written with %, as browsers do."""
    return quote(address.strip(), safe=_RESERVED)


def refuse_address(address: str, problem: Any) -> InputError:
    """The error for an address that is not asked, or gives nothing."""
    return InputError(f"{printable_path(address[:200])}: {problem}")
