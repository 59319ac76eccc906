"""The whole application: the API under /v1, the page's files, and Gradio's page, behind one guard."""

from __future__ import annotations

import gradio as gr
from fastapi import FastAPI

from retrieval_app.api import (
    gallery_routes,
    health_routes,
    image_routes,
    review_routes,
    search_routes,
    write_routes,
)
from retrieval_app.api.access import Access, describe_token
from retrieval_app.api.errors import add_error_handlers, add_last_routes
from retrieval_app.api.metrics import Metrics
from retrieval_app.api.security import Security
from retrieval_app.page import shell, static_files
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
    add_error_handlers(app)
    token = describe_token(access)
    for routes in _ROUTES:
        app.include_router(routes.router, dependencies=[] if routes is health_routes else token)
    app.include_router(static_files.router)
    add_last_routes(app)
    gr.mount_gradio_app(
        app,
        shell.build_page(engine.live.path.name),
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
    app.add_middleware(Security, engine=engine, access=access, metrics=app.state.metrics)
    return app
