"""By which addresses others reach this machine, where a server listens on all that it has."""

from __future__ import annotations

import socket

_ELSEWHERE = {"0.0.0.0": (socket.AF_INET, "192.0.2.1", "127.0.0.1"), "::": (socket.AF_INET6, "2001:db8::1", "::1")}
"""Of those that stand for all addresses: their family, an address of nobody, and that of the machine itself."""
_DISCARD_PORT = 9


def choose_shown(host: str) -> str:
    """An address that is listened on, as others ask for it; the machine's own where it is in no network."""
    if host not in _ELSEWHERE:
        return host
    family, elsewhere, own = _ELSEWHERE[host]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((elsewhere, _DISCARD_PORT))  # sends nothing: it chooses by which address it would
            return str(asking.getsockname()[0])
    except OSError:  # no way to anybody, or no such family
        return own


def name_listened(host: str) -> str | None:
    """What this machine calls itself, where all its addresses are listened on; a network need not know it."""
    return socket.gethostname() if host in _ELSEWHERE else None


def write_url(host: str, port: int, *, root_path: str = "") -> str:
    """The address of the page."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}/"
