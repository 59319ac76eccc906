"""The addresses that visitors come from, and what counts as one of them."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from index.network.public_addresses import read_address

_NETWORK_BITS = 64  # of an IPv6 address, the least that one subscriber has; the rest is its owner's choice


@lru_cache(maxsize=4096)
def group_address(text: str) -> str:
    """What counts as one address: one of IPv4, or the network of one of IPv6; a text that is none is itself."""
    address = read_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
    return text if address is None else str(address)
