"""Opening all that a server stands on (galleries, engines, decisions, jobs) around its applications, and closing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from index.writing.people_moves import try_bring_people
from retrieval_app.api.counters import Metrics
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.cors_origins import check_origins
from retrieval_app.api.security.hosts import choose_hosts
from retrieval_app.api.security.rate_limits import RateLimits
from retrieval_app.api.security.root_path import check_root_path
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.token_book import TokenBook
from retrieval_app.api.security.trusted_proxies import TrustedProxies
from retrieval_app.gradio_app.mounted import GradioProcess
from retrieval_app.page.sign_in_page import draw_sign_in
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.joining import join_decisions
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.server.access_log import open_logs
from retrieval_app.server.application import create_app
from retrieval_app.server.doors import Doors
from retrieval_app.server.hall import create_hall, create_nothing
from retrieval_app.server.refusals import Refusals
from retrieval_app.server.site import Site
from retrieval_app.server.spans import open_spans
from retrieval_app.serving.search_engine import Engine

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp

    from retrieval_app.server.options import ServedGallery, ServeOptions


@dataclass(frozen=True, slots=True)
class Assembled:
    """A server that can be run.

    Attributes:
        app: answers everything.
        make_code: makes a code for the address of the first visit.
        end: to be called when it is to end: what would go on for long does not.
        refusals: is to be told of what no application is asked.
    """

    app: ASGIApp
    make_code: Callable[[], str]
    end: Callable[[], None]
    refusals: Refusals


@contextmanager
def assemble(options: ServeOptions) -> Iterator[Assembled]:
    """A server's applications over its opened galleries; everything they hold is let go at the end.

    Raises:
        GalleryError: a gallery cannot be opened.
        InputError: the file of tokens cannot be used.
    """
    access, root_path = _choose_access(options), check_root_path(options.root_path)
    with ExitStack() as opened:
        lines, spans = opened.enter_context(open_logs(options.logs)), opened.enter_context(open_spans())
        doors = Doors(
            limits=options.limits, rates=RateLimits(options.rates), observers=[*lines.observers, *spans],
            proxies=TrustedProxies.of(options.trusted_proxies), origins=check_origins(options.cors_origins),
            root_path=root_path,
        )  # fmt: skip
        logs = {served.name or "": _open_log(opened, served, access) for served in options.galleries}
        sign_in = SignIn(access, draw=draw_sign_in, config=options.sign_in, root_path=root_path, logs=logs)
        gradio = GradioProcess()
        opened.callback(gradio.close)
        apps = {
            served.name: opened.enter_context(
                _open_gallery(
                    served, options, access, sign_in, doors=doors, gradio=gradio, log=logs[served.name or ""]
                )
            )
            for served in options.galleries
        }
        app, metrics = _join(apps, access, sign_in, doors)

        def end() -> None:
            for app in apps.values():
                app.state.engine.refuse_costly()
                app.state.gradio.hang_up()
                app.state.jobs.stop()

        refusals = Refusals(count=metrics.count_turned_away, write=lines.write_refusal)
        yield Assembled(app, sign_in.make_code, end, refusals)


def _choose_access(options: ServeOptions) -> Access:
    """Who may do what: of all galleries together where there are several."""
    book = None if options.tokens is None else TokenBook(options.tokens)
    names = frozenset(served.name for served in options.galleries if served.name is not None)
    hosts = choose_hosts(
        options.host, loopback=options.is_loopback, token=options.asks_token, allowed=options.allowed_hosts
    )
    if book is not None:
        book.warn_of_others(names)
    return Access(
        token=options.token, book=book, loopback=options.is_loopback,
        writable=options.writable, fetches=options.fetches, hosts=hosts, galleries=names,
    )  # fmt: skip


def _open_log(opened: ExitStack, served: ServedGallery, access: Access) -> ActivityLog:
    """The log of a gallery, at the place where what people made of it is from now on."""
    if access.takes_decisions:
        try_bring_people(served.path)
        join_decisions(served.path)
    log = ActivityLog(served.path)
    opened.callback(log.close)
    return log


@contextmanager
def _open_gallery(
    served: ServedGallery, options: ServeOptions, access: Access, sign_in: SignIn, *, doors: Doors,
    gradio: GradioProcess, log: ActivityLog,
) -> Iterator[FastAPI]:  # fmt: skip
    """The application of one gallery."""
    if served.name is not None:
        access = replace(access, galleries=frozenset((served.name,)), is_hidden=True)
        sign_in = sign_in.for_gallery(access)
    with ExitStack() as opened:
        engine = Engine(served.path, config=options.limits, audit=options.audit, name=served.name)
        opened.callback(engine.close)
        review = ReviewStore.of_gallery(served.path)
        opened.callback(review.close)
        jobs = Jobs(
            served.path, on_change=engine.live.refresh, open_gallery=lambda: engine.snapshot().gallery, log=log
        )
        opened.callback(jobs.close)
        engine.live.watch(poll_s=engine.config.poll_s)
        if options.writable:
            jobs.resume()
        yield create_app(
            engine, access=access, review=review, jobs=jobs, log=log, sign_in=sign_in, doors=doors,
            gradio=gradio, name=served.name,
        )  # fmt: skip


def _join(
    apps: dict[str | None, FastAPI], access: Access, sign_in: SignIn, doors: Doors
) -> tuple[ASGIApp, Metrics]:
    """The application of the only gallery, or all of those with names and what is beside them; and what it counts."""
    if None in apps:
        return apps[None], apps[None].state.metrics
    named = {name: app for name, app in apps.items() if name is not None}
    nowhere = replace(access, galleries=frozenset(), is_hidden=True)
    hall = create_hall(named, access=access, sign_in=sign_in, doors=doors)
    metrics: Metrics = hall.state.metrics
    nothing = create_nothing(access=nowhere, sign_in=sign_in.for_gallery(nowhere), doors=doors, metrics=metrics)
    return Site(named, hall=hall, nothing=nothing, root_path=doors.root_path), metrics
