"""Which names a server answers to, so that nobody reaches it by pointing a name of theirs at its address."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from index.errors import InputError
from index.text import printable_path

if TYPE_CHECKING:  # the options of a server are read where nothing of the extra `ui` is installed
    from starlette.datastructures import Headers
    from starlette.types import Scope

LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
_WITH_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+))(?::\d{1,5})?")
_NAME = re.compile(r"(?!-)[0-9a-z_-]{1,63}(?:\.[0-9a-z_-]{1,63})*")


@dataclass(frozen=True, slots=True)
class HostNames:
    """The names and addresses of a server.

    Attributes:
        names: besides those that only the machine itself has for it.
        any_name: whether the others are answered to as well: what needs a token is not opened by another name.
        own_address: whether the address that a connection came in on is one, too.
    """

    names: frozenset[str] = frozenset()
    any_name: bool = False
    own_address: bool = False

    def admit(self, scope: Scope, headers: Headers) -> bool:
        """Whether a request asks for this server."""
        given = headers.getlist("host")
        name = _read_with_port(given[0]) if len(given) == 1 else None
        if name is None:
            return False
        if self.any_name or name in LOOPBACK_NAMES or name in self.names:
            return True
        local = scope.get("server")
        return self.own_address and local is not None and name == read_host(str(local[0]))


def choose_hosts(listened: str, *, loopback: bool, token: bool, allowed: Iterable[str] = ()) -> HostNames:
    """The names for an address that is listened on.

    Args:
        listened: the address, or its name.
        loopback: whether only this machine reaches it.
        token: whether a token is asked for.
        allowed: names that it goes by besides.

    Raises:
        InputError: one of them is none.
    """
    names = {check_host(text) for text in allowed}
    any_name = token and not loopback and not names
    if not loopback:
        names |= {name for name in (read_host(listened), *_name_machine()) if name is not None}
    elif (own := read_host(listened)) is not None:
        names.add(own)
    return HostNames(frozenset(names), any_name=any_name, own_address=not loopback)


def check_host(text: str) -> str:
    """A name as it is compared.

    Raises:
        InputError: it is none.
    """
    name = read_host(text.removeprefix("[").removesuffix("]"))
    if name is None:
        raise InputError(
            f"--allowed-host {printable_path(text)}: expected a name or an address alone, as photos.example.org"
        )
    return name


def read_host(text: str) -> str | None:
    """A name in lower case without the dot at its end, an address in its shortest form; None where it is neither."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        name = text.lower().removesuffix(".")
        return name if _NAME.fullmatch(name) else None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    name = read_host(host)
    try:
        return name == "localhost" or ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _read_with_port(text: str) -> str | None:
    found = _WITH_PORT.fullmatch(text)
    return None if found is None else read_host(found[1] or found[2])


def _name_machine() -> list[str | None]:
    """What this machine calls itself, for which no name server is asked."""
    name = socket.gethostname()
    first = name.partition(".")[0]
    return [read_host(name), read_host(first), read_host(f"{first}.local")]
