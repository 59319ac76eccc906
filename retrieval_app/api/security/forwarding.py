"""The headers that proxies add: a request with any of them comes from elsewhere, though its address may be local."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import Scope

from index.network.public_addresses import Address, group_address, read_address

_ADDED = re.compile(
    rb"forwarded|via|x-forwarded(-.*)?|x-original-.*|x-real-ip|x-client-ip|true-client-ip|cf-connecting-ip"
    rb"|x-gradio-server",
    re.DOTALL,
)


def _find_peer(scope: Scope) -> Address | None:
    """The address at the other end of the connection."""
    return read_address(str((scope.get("client") or ("",))[0]))


def is_forwarded(headers: Headers) -> bool:
    """Whether a proxy has passed a request on."""
    return any(_ADDED.fullmatch(name) for name, _ in headers.raw)


def comes_from_here(scope: Scope, headers: Headers) -> bool:
    """Whether a program on this machine sent a request, and no proxy on it passed it on."""
    peer = _find_peer(scope)
    return peer is not None and peer.is_loopback and not is_forwarded(headers)


def drop_forwarding(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers, whose names are in lower case, without what proxies added: nothing behind may believe it."""
    return [pair for pair in headers if not _ADDED.fullmatch(pair[0])]


def name_client(scope: Scope, headers: Headers) -> str:
    """The address that a request comes from, by which wrong tries are counted.

    That of a proxy on this machine is replaced by the last one that it tells, which it has seen itself.
    """
    peer = _find_peer(scope)
    if peer is None:
        return "unknown"
    if peer.is_loopback:
        told = read_address(headers.get("x-forwarded-for", "").rpartition(",")[2].strip())
        peer = told or peer
    return group_address(str(peer))


def came_by_tls(scope: Scope, headers: Headers) -> bool:
    """Whether the browser spoke TLS, if only with a proxy on this machine, as no other is believed."""
    if scope.get("scheme") == "https":
        return True
    peer = _find_peer(scope)
    return peer is not None and peer.is_loopback and headers.get("x-forwarded-proto", "").lower() == "https"
