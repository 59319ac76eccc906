"""Public addresses: the check that protects internal networks from addresses in lists (SSRF)."""

import ipaddress
from contextlib import suppress
from functools import lru_cache
from urllib.parse import quote, urljoin, urlsplit

from index.errors import InputError

MAX_ADDRESS_CHARACTERS = 2048
REDIRECTS = (301, 302, 303, 307, 308)
_RESERVED = "%/:?#[]@!$&'()*+,;=~"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
PORTS = {"http": 80, "https": 443}
_NETWORK_BITS = 64  # of an IPv6 address, the least that one subscriber has; the rest is its owner's choice
_INTERNET = ipaddress.IPv6Network("2000::/3")  # all that is given out of the newer kind
# Within it: what has an address of the older kind in it, and what is for documents.
_NOT_INTERNET = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "3fff::/20")))
_CLOUD_HOST = ipaddress.IPv4Address("168.63.129.16")  # public by its number, and the host that a machine runs on


def check_web_address(address: str) -> None:
    """See that a text is a plain address of http or https."""
    if len(address) > MAX_ADDRESS_CHARACTERS:
        raise InputError(f"an address of {len(address)} characters; at most {MAX_ADDRESS_CHARACTERS} are taken")
    try:
        parts = urlsplit(address)
        is_usual = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
        is_plain = address.isascii() and address.isprintable() and " " not in address
    except ValueError:
        is_usual = is_plain = False
    if not is_usual or not is_plain:
        raise InputError("expected the address of an image, such as https://example.org/photo.jpg", at=address[:200])
    if parts.username is not None or parts.password is not None:
        raise InputError("an address with a name or password in it is not asked")


def lead_on(address: str, location: str) -> str:
    """Where an answer leads; letters that addresses do not have, but some servers send, are written as they do."""
    with suppress(UnicodeError):
        location = location.encode("latin-1").decode("utf-8")
    try:
        return urljoin(address, quote(location, safe=_RESERVED))
    except ValueError as error:
        raise InputError("it leads on to an invalid address", at=address[:200]) from error


def as_written(address: str) -> str:
    """An address in the letters that addresses have: spaces and other letters are written with %, as browsers do."""
    return quote(address.strip(), safe=_RESERVED)


@lru_cache(maxsize=4096)
def read_address(text: str) -> Address | None:
    """An address, of one of IPv4 that is written as one of IPv6 the former; None for an invalid text."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=4096)
def group_address(text: str) -> str:
    """Key of a client: an IPv4 address, the network of an IPv6 address, or the text itself if it is no address."""
    address = read_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
    return text if address is None else str(address)


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet, and leads to no other that it has within."""
    if isinstance(address, ipaddress.IPv6Address):
        is_given_out = address in _INTERNET and not any(address in network for network in _NOT_INTERNET)
        return is_given_out and address.is_global and not address.is_multicast
    return address.is_global and not address.is_multicast and address != _CLOUD_HOST


def is_public_web(address: Address, port: int) -> bool:
    """Whether an address is public, and the port one of http or https."""
    return is_public(address) and port in PORTS.values()
