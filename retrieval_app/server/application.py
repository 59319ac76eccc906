"""The whole application: the API under /v1, the page and its files, and the Gradio app, behind one guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route

from retrieval_app.api.answered import Observer
from retrieval_app.api.counters import Metrics
from retrieval_app.api.document import make_api
from retrieval_app.api.errors import add_error_handlers, add_last_routes
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.cors import CrossOrigin
from retrieval_app.api.security.front_door import FrontDoor
from retrieval_app.api.security.gradio_doors import GRADIO
from retrieval_app.api.security.guard import Security
from retrieval_app.api.security.rate_limits import RateConfig
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.api.security.sign_in_config import SignInConfig
from retrieval_app.api.security.trusted_proxies import TrustedProxies
from retrieval_app.gradio_app.mounted import MountedApp
from retrieval_app.page import api_docs, shell, static_files
from retrieval_app.page.sign_in_page import draw_sign_in
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.photo_fetching import PhotoFetcher
from retrieval_app.serving.search_engine import Engine

SMALLEST_COMPRESSED_BYTES = 1000  # what fits into one packet is as fast uncompressed


def create_app(
    engine: Engine,
    *,
    access: Access,
    review: ReviewStore,
    jobs: Jobs,
    log: ActivityLog,
    sign_in: SignInConfig | None = None,
    observers: Sequence[Observer] = (),
    rates: RateConfig | None = None,
    root_path: str = "",
    proxies: TrustedProxies | None = None,
    origins: frozenset[str] = frozenset(),
) -> FastAPI:
    """The application over one engine, below a path of a site, behind proxies that are believed."""
    gradio = MountedApp(engine, root_path=root_path)

    @asynccontextmanager
    async def end_gradio(_: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.sign_in.visits.close()
        await gradio.close()

    app = make_api(asks_token=access.asks_token, lifespan=end_gradio)
    app.state.engine, app.state.access, app.state.review, app.state.jobs = engine, access, review, jobs
    app.state.log = log
    app.state.gradio, app.state.metrics = gradio, Metrics(engine)
    limits = engine.config
    app.state.fetcher = PhotoFetcher(
        max_bytes=limits.max_upload_bytes, seconds=limits.fetch_s, at_once=limits.fetches_at_once
    )
    app.state.sign_in = SignIn(access, draw=draw_sign_in, config=sign_in, log=log)
    add_error_handlers(app)
    for router in (sign_in_router, shell.router, static_files.router, api_docs.router):
        app.router.routes += router.routes
    add_last_routes(app)
    app.router.routes += [Route(GRADIO, gradio), Route(GRADIO + "/{path:path}", gradio)]
    # Text and JSON go out compressed, pictures and archives as they are. The length of an answer tells nothing that is
    # kept from its reader: tokens and cookies stand in no body, and no other site may ask.
    app.add_middleware(GZipMiddleware, minimum_size=SMALLEST_COMPRESSED_BYTES, compresslevel=5)
    app.add_middleware(
        Security,
        engine=engine,
        access=access,
        sign_in=app.state.sign_in,
        metrics=app.state.metrics,
        observers=observers,
        rates=rates,
    )
    app.add_middleware(CrossOrigin, origins=origins)
    app.add_middleware(FrontDoor, root_path=root_path, proxies=proxies)
    return app
