"""What proxies say of the requests that they pass on, where they are among those that are believed.

Each proxy writes behind what it was told, so a chain of them is read from its end: the last entry is the word of the
one that is connected, and the first address that is no trusted proxy is the client's. What stands before it the client
may have made up.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from index.errors import InputError
from index.network.public_addresses import Address, read_address
from index.text import printable_path

if TYPE_CHECKING:  # the options of a server are read where nothing of the extra `ui` is installed
    from starlette.datastructures import Headers

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PAIR = re.compile(r'[ \t]*([\w-]+)=(?:"([^"\\]*)"|([^\s;,"]*))[ \t]*([;,]|$)', re.ASCII)
_NODE = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\w+)?|([0-9.]+)(?::\w+)?|([0-9A-Fa-f:.]+)")


@dataclass(frozen=True, slots=True)
class Told:
    """What trusted proxies say of a request.

    Attributes:
        client: the address that it comes from; None where they cannot tell.
        scheme: that the client speaks, http or https.
        host: that it asks for; None where they do not say, and left the request's own as it was.
    """

    client: str | None
    scheme: str
    host: str | None


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Those proxies that are believed.

    Attributes:
        networks: that their addresses lie in.
    """

    networks: tuple[Network, ...] = ()

    @staticmethod
    def of(texts: Iterable[str]) -> TrustedProxies:
        """Those of addresses and networks.

        Raises:
            InputError: one of them is neither.
        """
        return TrustedProxies(tuple(map(_read_network, texts)))

    def __bool__(self) -> bool:
        return bool(self.networks)

    def include(self, address: Address | None) -> bool:
        """Whether an address is one of theirs."""
        return address is not None and any(address in network for network in self.networks)

    def hear(self, peer: str, headers: Headers) -> Told | None:
        """What the proxy at this address says of a request; None where it is not believed.

        `Forwarded` is read only where no `X-Forwarded-` header says the same: most proxies pass on whatever a client
        sends by a name that they do not use themselves.
        """
        address = read_address(peer)
        if not self.include(address):
            return None
        chain, schemes, hosts = (_list(headers, f"x-forwarded-{name}") for name in ("for", "proto", "host"))
        if chain or schemes or hosts:
            client, _ = self._find_client(chain, peer)
            return Told(client, _choose_scheme(schemes[-1:]), hosts[-1] if hosts else None)
        entries = _read_forwarded(", ".join(headers.getlist("forwarded")))
        client, place = self._find_client([entry.get("for", "") for entry in entries], peer)
        of_client = entries[place] if entries else {}
        return Told(client, _choose_scheme([of_client.get("proto", "")]), of_client.get("host"))

    def _find_client(self, chain: Sequence[str], peer: str) -> tuple[str | None, int]:
        """The last address that is no trusted proxy's, and its place; the first where all are."""
        for place in reversed(range(len(chain))):
            address = _read_node(chain[place])
            if not self.include(address) or place == 0:
                return (None if address is None else str(address)), place
        return peer, 0


def _list(headers: Headers, name: str) -> list[str]:
    return [part.strip() for text in headers.getlist(name) for part in text.split(",") if part.strip()]


def _choose_scheme(told: Sequence[str]) -> str:
    return "https" if [text.lower() for text in told] == ["https"] else "http"


def _read_forwarded(text: str) -> list[dict[str, str]]:
    """The entries of the header `Forwarded` (RFC 7239); none where it is not written as it must be."""
    entries: list[dict[str, str]] = [{}]
    start = 0
    while start < len(text):
        found = _PAIR.match(text, start)
        if found is None:
            return []
        entries[-1][found[1].lower()] = found[3] if found[2] is None else found[2]
        if found[4] == ",":
            entries.append({})
        start = found.end()
    return [entry for entry in entries if entry]


def _read_node(text: str) -> Address | None:
    """The address of an entry, which may have a port."""
    found = _NODE.fullmatch(text)
    return None if found is None else read_address(found[1] or found[2] or found[3])


def _read_network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise InputError(
            f"--trusted-proxy {printable_path(text)}: expected an address or a network, as 127.0.0.1 or 10.0.0.0/8 "
            f"({error})"
        ) from error
    if network.prefixlen == 0:
        raise InputError(
            f"--trusted-proxy {printable_path(text)}: that is everybody, who could then be whoever they say; name the "
            "proxy's address"
        )
    return network
