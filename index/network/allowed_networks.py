"""The private networks that lists of addresses may be fetched from: those that a variable of the environment names.

A gallery does not say it: whoever runs a command decides, also over a gallery that came from elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
from functools import lru_cache

from index.errors import InputError
from index.network.public_addresses import Address, is_public_web

VARIABLE = "RETRIEVAL_FETCH_FROM"
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def may_fetch(address: Address, port: int) -> bool:
    """Whether an address is public, at a usual port, or of a network that the user allows, at any port.

    Raises:
        InputError: the variable names no networks.
    """
    allowed = read_networks(os.environ.get(VARIABLE, ""))
    return is_public_web(address, port) or any(address in network for network in allowed)


@lru_cache(maxsize=8)
def read_networks(text: str) -> tuple[_Network, ...]:
    """The networks of a text such as `10.0.0.0/8, 127.0.0.1`.

    Raises:
        InputError: it has something else in it.
    """
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(f"{VARIABLE}: {error}; expected networks such as 10.0.0.0/8,127.0.0.1/32") from error
