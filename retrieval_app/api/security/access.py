"""Access control: who may read, decide about labels and duplicates, and change the gallery itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from fastapi import Request
from starlette.datastructures import Headers

from retrieval_app.api.errors import ApiError
from retrieval_app.api.security.addresses import HostNames, choose_hosts, is_forwarded
from retrieval_app.api.security.rights import METRICS, READ, REVIEW, WRITE, Visitor, find_visitor
from retrieval_app.api.security.tokens import TokenBook, TokenEntry, are_equal, check_token

if TYPE_CHECKING:
    from retrieval_app.server.options import ServeOptions

OPEN_PATHS = frozenset(("/v1/health", "/v1/ready"))
"""Those that need no token."""
METRICS_PATH = "/v1/metrics"
THIS_MACHINE, THE_TOKEN = "this machine", "the token"
"""What visitors without a name are called in the log of what was done."""
THE_OWNER = TokenEntry(THE_TOKEN, (WRITE,), "", datetime.min.replace(tzinfo=UTC))
"""What the one token of a server opens: everything."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a server allows.

    Attributes:
        token: that every request but those for health must bring, and that may everything; None where there is none.
        book: the tokens with names and rights of which every request must bring one, in the place of `token`.
        loopback: whether only this machine reaches the server, if no proxy on it passes others on.
        writable: whether the gallery may be changed, which takes a token too.
        fetches: whether photos are fetched from addresses that visitors name.
        hosts: the names that it answers to.
        galleries: the names of those, among several of a server, that requests are for; rights in one are rights here.
        is_hidden: whether nobody is told that there is a gallery who has no right in it.
    """

    token: str | None = None
    book: TokenBook | None = None
    loopback: bool = True
    writable: bool = False
    fetches: bool = False
    hosts: HostNames = field(default_factory=HostNames)
    galleries: frozenset[str] = frozenset()
    is_hidden: bool = False

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token)

    @property
    def asks_token(self) -> bool:
        """Whether every request must bring a token."""
        return self.token is not None or self.book is not None

    def session_key(self) -> bytes | None:
        """The key of signed cookies, which end with what it comes from."""
        if self.book is not None:
            return self.book.session_key()
        return None if self.token is None else _derive_key(self.token)

    def find(self, token: str) -> TokenEntry | None:
        """What is known of a token; None of one that opens nothing."""
        if self.book is not None:
            return self.book.find(token)
        return THE_OWNER if self.token is not None and are_equal(token, self.token) else None

    def find_again(self, sha256: str) -> TokenEntry | None:
        """What is known now of a token that opened a session."""
        return THE_OWNER if self.book is None else self.book.find_again(sha256)

    def opens_to_all(self, path: str) -> bool:
        """Whether an address is answered to who brings no token."""
        return path in OPEN_PATHS and not self.is_hidden

    def rights_of(self, entry: TokenEntry) -> frozenset[str]:
        """What a token with a name may here."""
        return entry.rights_in(self.galleries)

    def trusts(self, headers: Headers) -> bool:
        """Whether who brings no token may decide: at the machine itself, where none is asked for."""
        return not self.asks_token and self.loopback and not is_forwarded(headers)

    def describe_untold(self, headers: Headers) -> Visitor:
        """Who brings no token, where none is asked for."""
        if self.trusts(headers):
            return Visitor(rights=frozenset((READ, REVIEW, METRICS)), name=THIS_MACHINE)
        return Visitor(rights=frozenset((READ, METRICS)))


def choose_access(options: ServeOptions, *, secret: bytes | None = None) -> Access:
    """Who may do what: of all galleries together where there are several; `secret` is that of sessions."""
    names = frozenset(served.name for served in options.galleries if served.name is not None)
    hosts = choose_hosts(
        options.host, loopback=options.is_loopback, token=options.asks_token, allowed=options.allowed_hosts
    )
    return Access(
        token=options.token, book=None if options.tokens is None else TokenBook(options.tokens, secret=secret),
        # Behind a proxy that is named everybody is a stranger, whether it says so or not.
        loopback=options.is_loopback and not options.trusted_proxies,
        writable=options.writable, fetches=options.fetches, hosts=hosts, galleries=names,
    )  # fmt: skip


@cache
def _derive_key(token: str) -> bytes:
    """Slowly, as people choose tokens that a cookie is not to help to guess."""
    return hashlib.scrypt(token.encode(), salt=b"retrieval sessions", n=1 << 14, r=8, p=1)


def may_reach(visitor: Visitor, path: str) -> bool:
    """Whether an address may be asked for at all: who may not read has the metrics, if that."""
    return READ in visitor.rights or path in OPEN_PATHS or (path == METRICS_PATH and METRICS in visitor.rights)


def may(request: Request, right: str) -> bool:
    """Whether the visitor has a right, and the server lets it be used."""
    is_closed = right == WRITE and not request.app.state.access.writable
    return right in find_visitor(request.scope).rights and not is_closed


@dataclass(frozen=True, slots=True)
class Require:
    """Dependency of a route: the visitor must have a right.

    Attributes:
        right: which.
        closed: what a server says that has no token, or lets nobody use the right.
        refused: what it says to who has a token without the right.
    """

    right: str
    closed: str
    refused: str

    def __call__(self, request: Request) -> None:
        if not may(request, self.right):
            has_other = find_visitor(request.scope).has_token
            has_other = has_other and (self.right != WRITE or request.app.state.access.writable)
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
_NO_METRICS = "this token may not read the metrics; one with the right metrics, or write, does"
require_metrics = Require(METRICS, _NO_METRICS, _NO_METRICS)


def require_fetching(request: Request) -> None:
    """A route's dependency: photos must be fetched from addresses."""
    if not request.app.state.access.fetches:
        message = "this server fetches nothing: save the picture and send it, or start it with --fetch-addresses"
        raise ApiError(message, status=403)
