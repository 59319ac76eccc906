"""Who sent a request (with the token or without, from which address): found out once, and kept with the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.types import Scope

from retrieval_app.api.security.rights import REVIEW


@dataclass(frozen=True, slots=True)
class Visitor:
    """One who asks.

    Attributes:
        has_token: whether the request brought a token of the server's, or the cookie of somebody who had.
        rights: what the visitor may, as `security/rights.py` has it.
        name: who it is, for the log of what was done: a token's name, or words with a space, which no name has.
        address: where the request comes from, as far as that cannot be made up.
        by_tls: whether the browser spoke TLS.
        signed_in: whether a cookie told who it is, which signing out ends.
    """

    has_token: bool = False
    rights: frozenset[str] = frozenset()
    name: str = "a visitor"
    address: str = "unknown"
    by_tls: bool = False
    signed_in: bool = False

    @property
    def is_trusted(self) -> bool:
        """Whether the visitor may decide, and know the folders of the machine."""
        return REVIEW in self.rights

    @property
    def knows_failures(self) -> bool:
        """Whether the visitor is told what went wrong inside the server."""
        return self.has_token and self.is_trusted


STRANGER = Visitor()


def keep_visitor(scope: Scope, visitor: Visitor) -> None:
    """Let the routes know who asks."""
    scope["state"]["visitor"] = visitor


def find_visitor(scope: Scope) -> Visitor:
    """Who asks; a stranger where nobody has looked."""
    return cast("Visitor", scope.get("state", {}).get("visitor", STRANGER))
