"""The application of one gallery: the API under /v1, the page and its files, and the Gradio app, behind the doors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route

from retrieval_app.api.document import make_api
from retrieval_app.api.errors import add_error_handlers, add_last_routes
from retrieval_app.api.security.gradio_doors import GRADIO
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.gradio_app.mounted import GradioProcess, MountedApp
from retrieval_app.page import api_docs, shell, static_files
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.photo_fetching import PhotoFetcher
from retrieval_app.serving.search_engine import Engine


def create_app(
    engine: Engine,
    *,
    review: ReviewStore,
    jobs: Jobs,
    log: ActivityLog,
    gradio: GradioProcess,
    asks_token: bool,
    root_path: str = "",
    name: str | None = None,
) -> FastAPI:
    """The application over one engine, of a gallery that is the only one of a server or has a name among several.

    It finds in its state who asks and who may do what, which are put there with what stands before it.
    """
    mounted = MountedApp(engine, process=gradio, root_path=root_path)

    @asynccontextmanager
    async def end_gradio(_: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.sign_in.visits.close()
        await mounted.close()

    app = make_api(asks_token=asks_token, lifespan=end_gradio)
    app.state.engine, app.state.review, app.state.jobs, app.state.log = engine, review, jobs, log
    app.state.gradio, app.state.is_one_of_several = mounted, name is not None
    limits = engine.config
    app.state.fetcher = PhotoFetcher(
        max_bytes=limits.max_upload_bytes, seconds=limits.fetch_s, at_once=limits.fetches_at_once
    )
    add_error_handlers(app)
    for router in (sign_in_router, shell.router, static_files.router, api_docs.router):
        app.router.routes += router.routes
    add_last_routes(app)
    app.router.routes += [Route(GRADIO, mounted), Route(GRADIO + "/{path:path}", mounted)]
    return app
