"""Opening all that a server stands on (gallery, engine, decisions, jobs) around its application, and closing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from index.writing.people_moves import try_bring_people
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.cors_origins import check_origins
from retrieval_app.api.security.hosts import choose_hosts
from retrieval_app.api.security.root_path import check_root_path
from retrieval_app.api.security.token_book import TokenBook
from retrieval_app.api.security.trusted_proxies import TrustedProxies
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.joining import join_decisions
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.server.access_log import open_logs
from retrieval_app.server.application import create_app
from retrieval_app.server.refusals import Refusals
from retrieval_app.server.spans import open_spans
from retrieval_app.serving.search_engine import Engine

if TYPE_CHECKING:
    from fastapi import FastAPI

    from retrieval_app.server.options import ServeOptions


@contextmanager
def assemble(options: ServeOptions) -> Iterator[FastAPI]:
    """The application over an opened gallery; everything it holds is let go at the end.

    Raises:
        GalleryError: the gallery cannot be opened.
        InputError: the file of tokens cannot be used.
    """
    hosts = choose_hosts(
        options.host,
        loopback=options.is_loopback,
        token=options.asks_token,
        allowed=options.allowed_hosts,
    )
    access = Access(
        token=options.token, book=None if options.tokens is None else TokenBook(options.tokens),
        loopback=options.is_loopback,
        writable=options.writable, fetches=options.fetches, hosts=hosts,
    )  # fmt: skip
    if access.takes_decisions:
        try_bring_people(options.gallery)
        join_decisions(options.gallery)
    engine = Engine(options.gallery, config=options.limits, audit=options.audit)
    try:
        review = ReviewStore.of_gallery(options.gallery)
        log = ActivityLog(options.gallery)
        jobs = Jobs(
            options.gallery, on_change=engine.live.refresh, open_gallery=lambda: engine.snapshot().gallery, log=log
        )
        engine.live.watch(poll_s=engine.config.poll_s)
        if options.writable:
            jobs.resume()
        try:
            with open_logs(options.logs) as logs, open_spans() as spans:
                app = create_app(
                    engine, access=access, review=review, jobs=jobs, log=log, sign_in=options.sign_in,
                    observers=[*logs.observers, *spans], rates=options.rates,
                    root_path=check_root_path(options.root_path), proxies=TrustedProxies.of(options.trusted_proxies),
                    origins=check_origins(options.cors_origins),
                )  # fmt: skip
                app.state.refusals = Refusals(count=app.state.metrics.count_turned_away, write=logs.write_refusal)
                yield app
        finally:
            jobs.close()
            log.close()
            review.close()
    finally:
        engine.close()
