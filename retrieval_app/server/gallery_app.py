"""Opening what one gallery's application stands on (engine, decisions, jobs) around it, and closing it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
from retrieval_app.server.doors import compress, place_gallery
from retrieval_app.serving.photo_fetching import PhotoFetcher
from retrieval_app.serving.search_engine import Engine

if TYPE_CHECKING:
    from fastapi import FastAPI

    from retrieval_app.server.options import ServedGallery, ServeOptions


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


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a process is one of several that serve a gallery.

    Attributes:
        folder: of what they have together.
        tell_swap: is told the digest of each version that this one begins to serve.
        is_first: whether no other was before it, so that it goes on with what an earlier server left.
    """

    folder: Path
    tell_swap: Callable[[str], object]
    is_first: bool


@contextmanager
def open_gallery(
    served: ServedGallery, options: ServeOptions, *, log: ActivityLog, gradio: GradioProcess, root_path: str,
    sharing: Sharing | None = None,
) -> Iterator[FastAPI]:  # fmt: skip
    """The application of one gallery, before which nothing stands yet.

    Args:
        served: the gallery.
        options: of the server.
        log: of who did what.
        gradio: what the Gradio apps of this process share.
        root_path: below which the server is.
        sharing: how this process is one of several; None where it is the only one.

    Raises:
        GalleryError: it cannot be opened.
    """
    folder = None if sharing is None else sharing.folder
    with ExitStack() as opened:
        engine = Engine(served.path, config=options.limits, audit=options.audit, name=served.name, shared=folder)
        opened.callback(engine.close)
        review = ReviewStore.of_gallery(served.path)
        opened.callback(review.close)
        jobs = Jobs(
            served.path, on_change=engine.live.refresh, open_gallery=engine.open_decided, log=log, shared=folder
        )  # fmt: skip
        opened.callback(jobs.close)
        if sharing is None:
            engine.live.watch(poll_s=engine.config.poll_s)
        else:
            engine.live.watch(poll_s=engine.config.poll_s, tell_swap=sharing.tell_swap)
            jobs.watch(poll_s=engine.config.poll_s)
        if options.writable and (sharing is None or sharing.is_first):
            jobs.resume()
        app = create_app(
            engine, review=review, jobs=jobs, log=log, gradio=gradio, asks_token=options.asks_token,
            root_path=place_gallery(root_path, served.name), name=served.name,
        )  # fmt: skip
        compress(app)
        yield app


def end_soon(app: FastAPI) -> None:
    """Let what a gallery's application would do for long end: its server is about to."""
    app.state.engine.refuse_costly()
    app.state.gradio.hang_up()
    app.state.jobs.stop()
