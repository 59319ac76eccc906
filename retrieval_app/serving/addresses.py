"""The addresses that visitors come from, and what counts as one of them."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NETWORK_BITS = 64  # of an IPv6 address, the least that one subscriber has; the rest is its owner's choice


@lru_cache(maxsize=4096)
def read_address(text: str) -> Address | None:
    """An address, of one of IPv4 that is written as one of IPv6 the former; None where a text is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=4096)
def group_address(text: str) -> str:
    """What counts as one address: one of IPv4, or the network of one of IPv6; a text that is none is itself."""
    address = read_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
    return text if address is None else str(address)
