"""The whole application: the API under /v1, the page's files, and Gradio's page, behind one guard."""

from __future__ import annotations

import gradio as gr
from fastapi import FastAPI
from starlette.routing import Mount

from retrieval_app.api import (
    gallery_routes,
    health_routes,
    image_routes,
    review_routes,
    search_routes,
    sign_in_routes,
    write_routes,
)
from retrieval_app.api.access import Access, describe_token
from retrieval_app.api.errors import add_error_handlers, add_last_routes
from retrieval_app.api.headers import allow_scripts
from retrieval_app.api.metrics import Metrics
from retrieval_app.api.security import Security
from retrieval_app.api.sign_in import SignIn
from retrieval_app.page import shell, static_files
from retrieval_app.page.document import PageDocument
from retrieval_app.page.sign_in_page import draw_sign_in
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.store import ReviewStore
from retrieval_app.serving.engine import Engine

_ROUTES = (search_routes, image_routes, gallery_routes, review_routes, write_routes, health_routes)


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
    for routes in _ROUTES:
        app.include_router(routes.router, dependencies=[] if routes is health_routes else token)
    app.include_router(sign_in_routes.router)
    app.include_router(static_files.router)
    add_last_routes(app)
    _mount_page(app, name=engine.live.path.name)
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
