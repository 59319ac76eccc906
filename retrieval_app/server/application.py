"""The whole application: the API under /v1, the page's files, and Gradio's page, behind one guard."""

from __future__ import annotations

import gradio as gr
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount

from retrieval_app.api.counters import Metrics
from retrieval_app.api.errors import add_error_handlers, add_last_routes
from retrieval_app.api.headers import allow_scripts
from retrieval_app.api.routes import OPEN_ROUTES, ROUTES
from retrieval_app.api.security.access import Access, describe_token
from retrieval_app.api.security.guard import Security
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.page import shell, static_files
from retrieval_app.page.document import PageDocument
from retrieval_app.page.sign_in_page import draw_sign_in
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.search_engine import Engine

SMALLEST_COMPRESSED_BYTES = 1000  # what fits into one packet is as fast uncompressed


def create_app(engine: Engine, *, access: Access, review: ReviewStore, jobs: Jobs) -> FastAPI:
    """The application over one engine."""
    app = FastAPI(
        title="Image retrieval",
        summary="Search a gallery of images, see how far results can be trusted, and mend its labels.",
        version="1",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # its scripts would come from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.engine, app.state.access, app.state.review, app.state.jobs = engine, access, review, jobs
    app.state.metrics = Metrics(engine)
    app.state.sign_in = SignIn(access, draw=draw_sign_in)
    add_error_handlers(app)
    token = describe_token(access)
    for routes in ROUTES:
        app.include_router(routes.router, dependencies=[] if routes in OPEN_ROUTES else token)
    app.include_router(sign_in_router)
    app.include_router(static_files.router)
    add_last_routes(app)
    _mount_page(app, name=engine.live.path.name)
    # Text and JSON go out compressed, pictures and archives as they are. The length of an answer tells nothing that is
    # kept from its reader: tokens and cookies stand in no body, and no other site may ask.
    app.add_middleware(GZipMiddleware, minimum_size=SMALLEST_COMPRESSED_BYTES, compresslevel=5)
    app.add_middleware(
        Security, engine=engine, access=access, sign_in=app.state.sign_in, metrics=app.state.metrics
    )
    return app


def _mount_page(app: FastAPI, *, name: str) -> None:
    """Put the page of a gallery of that name behind all other routes."""
    gr.mount_gradio_app(
        app,
        shell.build_page(name),
        path="/",
        footer_links=[],
        run_history=False,
        show_error=False,  # the text of an unforeseen exception is for the terminal, not for visitors
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=shell.make_theme(),
        head=shell.HEAD,
    )
    mount = app.router.routes.pop()
    assert isinstance(mount, Mount), "Gradio is mounted last"
    document = PageDocument(mount.app, write_policy=allow_scripts)
    app.add_route("/", document.send, methods=["GET", "HEAD"], include_in_schema=False)
    app.router.routes.append(mount)
