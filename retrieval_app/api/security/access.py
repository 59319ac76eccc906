"""Who may do what on a server: reading, deciding about labels and duplicates, and changing the gallery itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import Headers

from retrieval_app.api.errors import ApiError
from retrieval_app.api.security.forwarding import is_forwarded
from retrieval_app.api.security.hosts import HostNames
from retrieval_app.api.security.tokens import check_token
from retrieval_app.api.visitors import find_visitor


@dataclass(frozen=True, slots=True)
class Access:
    """What a server allows.

    Attributes:
        token: that every request but those for health must bring; None where none is asked for.
        loopback: whether only this machine reaches the server, if no proxy on it passes others on.
        writable: whether the gallery may be changed, which takes a token too.
        fetches: whether photos are fetched from addresses that visitors name.
        hosts: the names that it answers to.
    """

    token: str | None = None
    loopback: bool = True
    writable: bool = False
    fetches: bool = False
    hosts: HostNames = field(default_factory=HostNames)

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token)

    @property
    def takes_decisions(self) -> bool:
        """Whether anybody may decide here, or change anything."""
        return self.loopback or self.token is not None

    def trusts(self, headers: Headers) -> bool:
        """Whether who brings no token may decide: at the machine itself, where none is asked for."""
        return self.token is None and self.loopback and not is_forwarded(headers)


def may_review(request: Request) -> bool:
    """Whether decisions are taken."""
    return find_visitor(request.scope).is_trusted


def may_write(request: Request) -> bool:
    """Whether images are added and removed."""
    access: Access = request.app.state.access
    return access.writable and find_visitor(request.scope).has_token


def may_fetch(request: Request) -> bool:
    """Whether photos are fetched from addresses."""
    access: Access = request.app.state.access
    return access.fetches


def sees_folders(request: Request) -> bool:
    """Whether absolute folders of the machine are told."""
    return find_visitor(request.scope).is_trusted


def require_review(request: Request) -> None:
    """A route's dependency: decisions must be allowed.

    Raises:
        ApiError: they are not.
    """
    if not may_review(request):
        message = "decisions are taken only on the machine itself, and there without a proxy, or with a token"
        raise ApiError(message, status=403)


def require_fetching(request: Request) -> None:
    """A route's dependency: photos must be fetched from addresses.

    Raises:
        ApiError: they are not.
    """
    if not may_fetch(request):
        message = "this server fetches nothing: save the picture and send it, or start it with --fetch-addresses"
        raise ApiError(message, status=403)


def require_writing(request: Request) -> None:
    """A route's dependency: the gallery must be open to changes.

    Raises:
        ApiError: it is not.
    """
    if not may_write(request):
        message = "this server does not change its gallery: start it with --writable and a token"
        raise ApiError(message, status=403)
