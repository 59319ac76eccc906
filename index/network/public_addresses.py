"""Which addresses of a network may be asked, where somebody else than the user names them: those of the internet."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache

from index.errors import InputError
from index.text import printable_path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MayConnect = Callable[[Address, int], bool]
"""Whether an address may be asked, at a port."""

PORTS = {"http": 80, "https": 443}
_NETWORK_BITS = 64  # of an IPv6 address, the least that one subscriber has; the rest is its owner's choice
_INTERNET = ipaddress.IPv6Network("2000::/3")  # all that is given out of the newer kind
# Within it: what has an address of the older kind in it, and what is for documents.
_NOT_INTERNET = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "3fff::/20")))
_CLOUD_HOSTS = (
    ipaddress.IPv4Address("168.63.129.16"),
)  # public by its number, and the host that a machine runs on


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


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet, and leads to no other that it has within."""
    if isinstance(address, ipaddress.IPv6Address):
        is_given_out = address in _INTERNET and not any(address in network for network in _NOT_INTERNET)
        return is_given_out and address.is_global and not address.is_multicast
    return address.is_global and not address.is_multicast and address not in _CLOUD_HOSTS


def is_public_web(address: Address, port: int) -> bool:
    """Whether an address is public, and the port one of http or https."""
    return is_public(address) and port in PORTS.values()


def check_addresses(host: str, port: int, *, found: Iterable[str], may_connect: MayConnect, advice: str) -> None:
    """See that all the addresses of a host may be asked: a name that leads to a private network even once is refused.

    Raises:
        InputError: one may not.
    """
    for text in found:
        address = read_address(text)
        if address is None or not may_connect(address, port):
            raise InputError(
                f"{printable_path(host)}: this host, or its port {port}, is not asked: pictures are fetched from "
                f"public addresses only, at the usual ports of http and https; {advice}"
            )
