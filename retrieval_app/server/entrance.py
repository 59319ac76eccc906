"""What all requests of a server pass: who may do what, who asks, and what is written down of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrieval_app.api.security.access import Access
from retrieval_app.api.security.cors_origins import check_origins
from retrieval_app.api.security.hosts import choose_hosts
from retrieval_app.api.security.rate_limits import RateLimits
from retrieval_app.api.security.root_path import check_root_path
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.token_book import TokenBook
from retrieval_app.api.security.trusted_proxies import TrustedProxies
from retrieval_app.page.sign_in_page import draw_sign_in
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.server.access_log import open_access_log
from retrieval_app.server.doors import Doors
from retrieval_app.server.spans import open_spans

if TYPE_CHECKING:
    from retrieval_app.server.options import ServedGallery, ServeOptions


@dataclass(frozen=True, slots=True)
class Entrance:
    """What is before all applications of a server.

    Attributes:
        doors: what stands before each.
        access: who may do what.
        sign_in: who asks.
        logs: of who did what, by the names of galleries; empty for the only one.
    """

    doors: Doors
    access: Access
    sign_in: SignIn
    logs: Mapping[str, ActivityLog]


def open_entrance(opened: ExitStack, options: ServeOptions) -> Entrance:
    """Open the logs, and see that what people made of the galleries is at its place; `opened` closes them.

    Raises:
        InputError: the file of tokens, or that of a log, cannot be used.
    """
    access, root_path = choose_access(options), check_root_path(options.root_path)
    if access.book is not None:
        access.book.warn_of_others(access.galleries)
    lines, spans = opened.enter_context(open_access_log(options.logs)), opened.enter_context(open_spans())
    doors = Doors(
        limits=options.limits, rates=RateLimits(options.rates), observers=[*lines, *spans],
        proxies=TrustedProxies.of(options.trusted_proxies), origins=check_origins(options.cors_origins),
        root_path=root_path,
    )  # fmt: skip
    logs = {served.name or "": _open_log(opened, served) for served in options.galleries}
    sign_in = SignIn(access, draw=draw_sign_in, config=options.sign_in, root_path=root_path, logs=logs)
    return Entrance(doors, access, sign_in, logs)


def choose_access(options: ServeOptions) -> Access:
    """Who may do what: of all galleries together where there are several.

    Raises:
        InputError: the file of tokens cannot be used.
    """
    names = frozenset(served.name for served in options.galleries if served.name is not None)
    hosts = choose_hosts(
        options.host, loopback=options.is_loopback, token=options.asks_token, allowed=options.allowed_hosts
    )
    return Access(
        token=options.token, book=None if options.tokens is None else TokenBook(options.tokens),
        loopback=options.is_loopback, writable=options.writable, fetches=options.fetches, hosts=hosts, galleries=names,
    )  # fmt: skip


def _open_log(opened: ExitStack, served: ServedGallery) -> ActivityLog:
    """The log of a gallery, closed with the server."""
    log = ActivityLog(served.path)
    opened.callback(log.close)
    return log
