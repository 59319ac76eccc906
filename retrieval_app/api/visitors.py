"""Who sent a request (with the token or without, from which address): found out once, and kept with the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.types import Scope


@dataclass(frozen=True, slots=True)
class Visitor:
    """One who asks.

    Attributes:
        has_token: whether the request brought the server's token, or the cookie of somebody who had.
        is_trusted: whether the visitor may decide, and know the folders of the machine: who has the token, and where
            none is asked for who is at the machine itself.
        address: where the request comes from, as far as that cannot be made up.
        by_tls: whether the browser spoke TLS.
    """

    has_token: bool = False
    is_trusted: bool = False
    address: str = "unknown"
    by_tls: bool = False


STRANGER = Visitor()


def keep_visitor(scope: Scope, visitor: Visitor) -> None:
    """Let the routes know who asks."""
    scope["state"]["visitor"] = visitor


def find_visitor(scope: Scope) -> Visitor:
    """Who asks; a stranger where nobody has looked."""
    return cast("Visitor", scope.get("state", {}).get("visitor", STRANGER))
