"""Who may do what on a server: reading, deciding about labels and duplicates, and changing the gallery itself."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from retrieval_app.api.errors import ApiError
from retrieval_app.api.tokens import check_token


@dataclass(frozen=True, slots=True)
class Access:
    """What a server allows.

    Attributes:
        token: that every request but those for health must bring; None where none is asked for.
        loopback: whether only this machine reaches the server.
        writable: whether the gallery may be changed, which takes a token too.
    """

    token: str | None = None
    loopback: bool = True
    writable: bool = False

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token)

    @property
    def may_review(self) -> bool:
        """Whether decisions are taken: from this machine, or from whoever has the token."""
        return self.loopback or self.token is not None

    @property
    def may_write(self) -> bool:
        """Whether images are added and removed."""
        return self.writable and self.token is not None

    @property
    def cookie_name(self) -> str:
        """Servers on other ports of the host have cookies of other names."""
        return f"retrieval_{self._digest('name')[:12]}"

    @property
    def cookie_value(self) -> str:
        """What a browser brings instead of the token, which it does not tell."""
        return self._digest("value")

    def is_token(self, text: str) -> bool:
        """Whether this is the token, in a time that does not tell how much of it is right."""
        return self.token is not None and _are_equal(text, self.token)

    def admits(self, headers: Headers) -> bool:
        """Whether a request with these headers may pass."""
        return self.token is None or self.knows(headers)

    def knows(self, headers: Headers) -> bool:
        """Whether a request with these headers brings the token: who does may hear of the machine's folders."""
        if self.token is None:
            return False
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(text.strip()):
            return True
        # Browsers send the cookies of all ports of a host, and of those some are no cookies by the book.
        brought = cookie_parser(headers.get("cookie", "")).get(self.cookie_name)
        return brought is not None and _are_equal(brought, self.cookie_value)

    def _digest(self, purpose: str) -> str:
        return hmac.new((self.token or "").encode(), purpose.encode(), hashlib.sha256).hexdigest()


def describe_token(access: Access) -> list[Dependency]:
    """The dependencies of routes that the token opens, by which the description of the API tells of it.

    They refuse nothing: what stands before every route does.
    """
    if access.token is None:
        return []
    return [Depends(HTTPBearer(auto_error=False, description="the server's token", scheme_name="token"))]


def require_review(request: Request) -> None:
    """A route's dependency: decisions must be allowed.

    Raises:
        ApiError: they are not.
    """
    if not request.app.state.access.may_review:
        message = "decisions are taken only on the machine itself, or with a token: retrieval serve --token"
        raise ApiError(message, status=403)


def require_writing(request: Request) -> None:
    """A route's dependency: the gallery must be open to changes.

    Raises:
        ApiError: it is not.
    """
    if not request.app.state.access.may_write:
        message = "this server does not change its gallery: start it with --writable and a token"
        raise ApiError(message, status=403)


def _are_equal(text: str, expected: str) -> bool:
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), expected.encode())
