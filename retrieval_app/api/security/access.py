"""Access control: who may search, decide about labels and duplicates, and change the gallery."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request
from starlette.datastructures import Headers

from retrieval_app.api.errors import ApiError
from retrieval_app.api.security.addresses import HostNames, choose_hosts, is_forwarded
from retrieval_app.api.security.rights import READ, REVIEW, WRITE, Visitor, find_visitor
from retrieval_app.api.security.tokens import TokenBook, TokenEntry, are_equal

if TYPE_CHECKING:
    from retrieval_app.server.options import ServeOptions

OPEN_PATHS = frozenset(("/v1/health", "/v1/ready"))  # need no token
THE_OWNER = TokenEntry("the token", (WRITE,), "", datetime.min.replace(tzinfo=UTC))
"""The entry of the one token of a server, which has every right."""


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules of a server, or of one of its galleries.

    Attributes:
        token: the one token, with all rights; `book` has tokens with names and rights in its place.
        loopback: whether only this machine reaches the server, if no proxy on it forwards requests.
        disk_changes: the folder that image files may be moved to; None where no file is ever changed.
        galleries: the names of those, among several, that requests are for; rights in one of them count.
        is_hidden: whether visitors without a right in it must not learn that the gallery exists.
    """

    token: str | None = None
    book: TokenBook | None = None
    loopback: bool = True
    writable: bool = False
    disk_changes: Path | None = None
    hosts: HostNames = field(default_factory=HostNames)
    galleries: frozenset[str] = frozenset()
    is_hidden: bool = False

    @property
    def requires_token(self) -> bool:
        """Whether every request must bring a token."""
        return self.token is not None or self.book is not None

    def session_key(self) -> bytes | None:
        """The key of session cookies, which end with the token or the file that it comes from."""
        if self.book is not None:
            return self.book.session_key()
        return None if self.token is None else _derive_key(self.token)

    def find(self, token: str) -> TokenEntry | None:
        """The entry of a valid token, or None."""
        if self.book is not None:
            return self.book.find(token)
        return THE_OWNER if self.token is not None and are_equal(token, self.token) else None

    def find_again(self, sha256: str) -> TokenEntry | None:
        """The entry of the token that opened a session."""
        return THE_OWNER if self.book is None else self.book.find_again(sha256)

    def describe_stranger(self, headers: Headers) -> Visitor:
        """A visitor of a server without tokens: at the machine itself, without a proxy, they may decide."""
        if self.loopback and not is_forwarded(headers):
            return Visitor(rights=frozenset((READ, REVIEW)), name="this machine")
        return Visitor(rights=frozenset((READ,)))


def choose_access(options: ServeOptions, *, secret: bytes | None = None) -> Access:
    """Access rules by the options of a server, of all its galleries; `secret` is that of sessions."""
    hosts = choose_hosts(
        options.host, loopback=options.is_loopback, token=options.requires_token, allowed=options.allowed_hosts
    )
    return Access(
        token=options.token,
        book=None if options.tokens is None else TokenBook(options.tokens, secret=secret),
        # Behind a named proxy, never trust a client as local.
        loopback=options.is_loopback and not options.trusted_proxies,
        writable=options.writable,
        disk_changes=None if options.disk_changes is None else options.disk_changes.resolve(),
        hosts=hosts,
        galleries=frozenset(served.name for served in options.galleries if served.name is not None),
    )


@cache
def _derive_key(token: str) -> bytes:
    """Slow, so that a cookie does not help to guess a token that a person chose."""
    return hashlib.scrypt(token.encode(), salt=b"retrieval sessions", n=1 << 14, r=8, p=1)


def may(request: Request, right: str) -> bool:
    """Whether the visitor has a right, and the server lets it be used."""
    is_closed = right == WRITE and not request.app.state.access.writable
    return right in find_visitor(request.scope).rights and not is_closed


@dataclass(frozen=True, slots=True)
class Require:
    """Dependency of a route: the visitor must have a right."""

    right: str
    closed: str  # the refusal of a server without a token, or where the right cannot be used
    refused: str  # the refusal of a token without the right

    def __call__(self, request: Request) -> None:
        if not may(request, self.right):
            can_be_used = self.right != WRITE or request.app.state.access.writable
            has_other = can_be_used and find_visitor(request.scope).has_token
            raise ApiError(self.refused if has_other else self.closed, status=403)


require_review = Require(
    REVIEW,
    "decisions are taken only on the machine itself, and there without a proxy, or with a token",
    "this token may only read; one that may review decides",
)
require_writing = Require(
    WRITE,
    "this server does not change its gallery: start it with --writable and a token",
    "this token may not change the gallery; one that may write does",
)


def require_disk_changes(request: Request) -> None:
    """Dependency of a route: the server may move image files."""
    if request.app.state.access.disk_changes is None:
        message = "this server changes no files: start it with --allow-disk-changes FOLDER, or use the command"
        raise ApiError(f"{message} `retrieval duplicates GALLERY --move-to FOLDER`", status=403)
