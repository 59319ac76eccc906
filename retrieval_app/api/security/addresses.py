"""Hosts, paths, proxies and origins: which requests are for this server, and where they come from."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from index.errors import InputError
from index.network.public_addresses import group_address, read_address
from index.text import printable_path

if TYPE_CHECKING:  # the options of a server are read where nothing of the extra `ui` is installed
    from starlette.datastructures import Headers
    from starlette.types import Scope

LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
LOCAL_PROXIES = ["127.0.0.1", "::1"]
"""Trusted for the client's address where no proxy is named: it gives no right, wrong tokens are counted by it."""
_WITH_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+))(?::\d{1,5})?")
_NAME = re.compile(r"(?!-)[0-9a-z_-]{1,63}(?:\.[0-9a-z_-]{1,63})*")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
_OWN_PATHS = frozenset(("v1", "page", "docs", "g"))  # with which the server's own addresses begin
_FORWARDING = re.compile(
    rb"forwarded|via|x-forwarded(-.*)?|x-original-.*|x-real-ip|x-client-ip|true-client-ip|cf-connecting-ip", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class HostNames:
    """The names and addresses of a server, besides those of the machine for itself."""

    names: frozenset[str] = frozenset()
    any_name: bool = False  # as where every request needs a token
    own_address: bool = False  # whether the address that a connection came in on is accepted

    def admit(self, scope: Scope, headers: Headers) -> bool:
        """Whether the host of a request is this server."""
        given = headers.getlist("host")
        name = _read_with_port(given[0]) if len(given) == 1 else None
        if name is None:
            return False
        if self.any_name or name in LOOPBACK_NAMES or name in self.names:
            return True
        local = scope.get("server")
        return self.own_address and local is not None and name == read_host(str(local[0]))


def choose_hosts(listened: str, *, loopback: bool, token: bool, allowed: Iterable[str] = ()) -> HostNames:
    """The names of a server that listens on an address or name, with further `allowed` ones."""
    names = {check_host(text) for text in allowed}
    any_name = token and not loopback and not names
    own = [listened]
    if not loopback:  # the machine's own name, without a look-up
        machine = socket.gethostname()
        own += [machine, first := machine.partition(".")[0], f"{first}.local"]
    names |= {name for name in map(read_host, own) if name is not None}
    return HostNames(frozenset(names), any_name=any_name, own_address=not loopback)


def check_host(text: str) -> str:
    """A name in the form that is compared; InputError for an invalid name."""
    name = read_host(text.removeprefix("[").removesuffix("]"))
    if name is None:
        raise InputError(
            f"--allowed-host {printable_path(text)}: expected a name or an address alone, as photos.example.org"
        )
    return name


def read_host(text: str) -> str | None:
    """A name in lower case without a final dot, or an address in its shortest form; None for neither."""
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


def check_root_path(text: str) -> str:
    """A root path with a slash at its start and none at its end, or nothing for `/`."""
    path, problem = text.removesuffix("/"), None
    if path and _ROOT_PATH.fullmatch(path) is None:
        problem = "expected a path of plain names, as /photos"
    elif path and path.split("/", 2)[1] in _OWN_PATHS:
        problem = "the server has addresses of its own there; choose another, as /photos"
    if problem is not None:
        raise InputError(f"--root-path {printable_path(text)}: {problem}")
    return path


def strip_root_path(path: str, root: str) -> str | None:
    """The path within the server, empty for the root without its slash; None where a proxy has removed the root."""
    if not root or not path.startswith(root):
        return None
    rest = path[len(root) :]
    return rest if not rest or rest.startswith("/") else None


def check_proxies(texts: Iterable[str]) -> list[str]:
    """Addresses and networks of proxies; InputError for others, and for a network of all addresses."""
    texts = list(texts)
    for text in texts:
        shown = f"--trusted-proxy {printable_path(text)}"
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            expected = "expected an address or a network, as 127.0.0.1 or 10.0.0.0/8"
            raise InputError(f"{expected} ({error})", at=shown) from error
        if network.prefixlen == 0:
            problem = "it holds all addresses, so any client could forge its own; name the proxy's address"
            raise InputError(problem, at=shown)
    return texts


def is_forwarded(headers: Headers) -> bool:
    """Whether a proxy has forwarded a request."""
    return any(_FORWARDING.fullmatch(name) for name, _ in headers.raw)


def name_client(scope: Scope) -> str:
    """The client's address, by which wrong tokens are counted."""
    peer = _read_peer(scope)
    return "unknown" if peer is None else group_address(str(peer))


def _read_peer(scope: Scope) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    return read_address(str((scope.get("client") or ("",))[0]))


def comes_from_another_site(headers: Headers, *, by_tls: bool = False) -> bool:
    """Whether a page of another site, or with TLS one without it, caused a request, by headers that browsers send.

    Over plain HTTP an embedded image may have none of them: it is sent without the cookie, and not shown, because of
    `Cross-Origin-Resource-Policy`.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin", headers.get("referer"))
    if origin is None:
        return False
    is_less_safe = by_tls and origin.lower().startswith("http:")
    authority = origin.partition("://")[2].partition("/")[0].lower()
    return is_less_safe or authority != headers.get("host", "").lower()
