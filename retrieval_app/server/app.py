"""The app factory: a server's galleries, their pages and APIs, behind middleware that all of them share.

One gallery is the application itself. Several have one each below `/g/NAME/`, beside one that lists them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from index.versions.people import people_folder
from retrieval_app.api import several_routes
from retrieval_app.api.counters import EngineCollector, Metrics, Observer
from retrieval_app.api.document import make_api
from retrieval_app.api.errors import ApiError, add_error_handlers, add_last_routes
from retrieval_app.api.schemas import NoParameters
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.addresses import (
    GRADIO,
    LOCAL_PROXIES,
    check_origins,
    check_proxies,
    check_root_path,
    choose_hosts,
    strip_root_path,
)
from retrieval_app.api.security.middleware import ApiCors, RootPath, Security, redirect_to_slash
from retrieval_app.api.security.rate_limits import RateLimits
from retrieval_app.api.security.sessions import read_secret
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.api.security.tokens import TokenBook
from retrieval_app.api.several_routes import list_galleries
from retrieval_app.gradio_app.mounted import GradioProcess, MountedApp
from retrieval_app.page import api_docs, shell, static_files
from retrieval_app.page.shell import draw_sign_in, name_signed_in
from retrieval_app.reports.standalone import load_template
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.server.access_log import open_access_log, open_spans
from retrieval_app.serving.photo_fetching import PhotoFetcher
from retrieval_app.serving.search_engine import Engine

if TYPE_CHECKING:
    from retrieval_app.server.options import ServedGallery, ServeOptions

_GALLERY = re.compile(r"/g/([^/]+)(/.*)?", re.DOTALL)
_LIST_STYLES = ("core/base.css", "core/frame.css", "galleries/galleries.css")
_SMALLEST_COMPRESSED_BYTES = 1000  # what fits into one packet is as fast uncompressed


@dataclass(frozen=True, slots=True)
class ServerApp:
    """The application of a server.

    Attributes:
        app: answers everything.
        end: to be called when the server is to end: what would go on for long ends then.
    """

    app: ASGIApp
    end: Callable[[], None]


@contextmanager
def open_server_app(options: ServeOptions, *, shared: Path | None = None) -> Iterator[ServerApp]:
    """A server's application over its opened galleries, closed in the end.

    Args:
        options: of the server.
        shared: folder of what the processes of a server have together; None where there is one.

    Raises:
        GalleryError: a gallery cannot be opened.
        InputError: the file of tokens, or that of a log, cannot be used.
    """
    with ExitStack() as opened:
        middleware = _open_middleware(opened, options, shared)
        gradio = GradioProcess()
        opened.callback(gradio.close)
        apps = {
            served.name: _open_gallery(
                opened, served, options, middleware=middleware, gradio=gradio, shared=shared
            )
            for served in options.galleries
        }

        def end() -> None:
            for app in apps.values():
                app.state.engine.refuse_costly()
                app.state.gradio.hang_up()
                app.state.jobs.stop()

        yield ServerApp(_choose_app(apps, middleware), end)


def choose_access(options: ServeOptions, *, secret: bytes | None = None) -> Access:
    """Who may do what: of all galleries together where there are several.

    Args:
        options: of the server.
        secret: of sessions, where there is a file of tokens.

    Raises:
        InputError: the file of tokens cannot be used.
    """
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


def make_code(options: ServeOptions) -> str:
    """A code for the address of the first visit, which any process of the server takes."""
    return _make_sign_in(options, choose_access(options), spent=_place_sessions(options)).make_code()


def _place_sessions(options: ServeOptions, shared: Path | None = None) -> list[Path]:
    """Where it is told which sessions were ended: in places that the order of galleries does not change."""
    if options.tokens is not None:
        places = [options.tokens.with_name(f"{options.tokens.name}.sessions")]
    else:
        places = [people_folder(served.path) / "sessions" for served in options.galleries]
    return places if shared is None else [*places, shared / "sessions"]  # the last, where no other can be written


def _make_sign_in(
    options: ServeOptions, access: Access, *, spent: Sequence[Path], logs: Mapping[str, ActivityLog] | None = None
) -> SignIn:
    root_path = check_root_path(options.root_path)
    return SignIn(access, draw=draw_sign_in, spent=spent, config=options.sign_in, root_path=root_path, logs=logs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Middleware:
    """What stands before all applications of a server.

    Attributes:
        options: of the server.
        access: who may do what.
        sign_in: who asks.
        logs: of who did what, by the names of galleries; empty for the only one.
        rates: how often one visitor may ask.
        observers: are told of every answer.
        root_path: below which the server lives.
    """

    options: ServeOptions
    access: Access
    sign_in: SignIn
    logs: Mapping[str, ActivityLog]
    rates: RateLimits
    observers: Sequence[Observer]
    root_path: str

    def put_before(
        self, app: FastAPI, *, access: Access, sign_in: SignIn, metrics: Metrics, gallery: str | None = None
    ) -> None:
        """Let an application be reached through it only, and find in its state who may do what.

        The length of a compressed answer tells nothing that is kept from its reader: tokens and cookies stand in no
        body, and no other site may ask.
        """
        app.state.access, app.state.sign_in, app.state.metrics = access, sign_in, metrics
        origins = check_origins(self.options.cors_origins)
        proxies = check_proxies(self.options.trusted_proxies) or LOCAL_PROXIES
        app.add_middleware(GZipMiddleware, minimum_size=_SMALLEST_COMPRESSED_BYTES, compresslevel=5)
        app.add_middleware(
            Security, limits=self.options.limits, access=access, sign_in=sign_in,
            observers=[metrics.observe, *self.observers], rates=self.rates, origins=origins, gallery=gallery,
            max_head_bytes=self.options.connections.max_head_bytes,
        )  # fmt: skip
        if origins:
            app.add_middleware(ApiCors, origins=origins)
        app.add_middleware(RootPath, root_path=_place_gallery(self.root_path, gallery))
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=proxies)


def _open_middleware(opened: ExitStack, options: ServeOptions, shared: Path | None) -> _Middleware:
    spent = _place_sessions(options, shared)
    access = choose_access(options, secret=None if options.tokens is None else read_secret(spent))
    root_path = check_root_path(options.root_path)
    if access.book is not None:
        access.book.warn_of_others(access.galleries)
    observers = [*opened.enter_context(open_access_log(options.logs)), *opened.enter_context(open_spans())]
    logs = {served.name or "": ActivityLog(served.path) for served in options.galleries}
    for log in logs.values():
        opened.callback(log.close)
    sign_in = _make_sign_in(options, access, spent=spent, logs=logs)
    return _Middleware(
        options=options, access=access, sign_in=sign_in, logs=logs, rates=RateLimits(options.rates),
        observers=observers, root_path=root_path,
    )  # fmt: skip


def _open_gallery(
    opened: ExitStack, served: ServedGallery, options: ServeOptions, *, middleware: _Middleware,
    gradio: GradioProcess, shared: Path | None,
) -> FastAPI:  # fmt: skip
    """The application of one gallery: engine, decisions and jobs around it are closed with `opened`."""
    engine = Engine(served.path, config=options.limits, audit=options.audit, name=served.name, shared=shared)
    opened.callback(engine.close)
    review = ReviewStore.of_gallery(served.path)
    opened.callback(review.close)
    log = middleware.logs[served.name or ""]
    jobs = Jobs(
        served.path, on_change=engine.live.refresh, open_gallery=engine.open_decided, log=log, shared=shared
    )
    opened.callback(jobs.close)
    engine.live.watch(poll_s=options.limits.poll_s)
    if shared is not None:
        jobs.watch(poll_s=options.limits.poll_s)
    if options.writable and (shared is None or _is_first(shared)):
        jobs.resume()
    access, sign_in = middleware.access, middleware.sign_in
    if served.name is not None:
        access = replace(access, galleries=frozenset((served.name,)), is_hidden=True)
        sign_in = sign_in.for_gallery(access)
    mounted = MountedApp(engine, process=gradio, root_path=_place_gallery(middleware.root_path, served.name))
    app = _create_gallery_app(mounted, asks_token=options.asks_token, has_gradio=shared is None)
    app.state.engine, app.state.review, app.state.jobs, app.state.log = engine, review, jobs, log
    app.state.is_one_of_several = served.name is not None
    limits = engine.config
    app.state.fetcher = PhotoFetcher(
        max_bytes=limits.max_upload_bytes, seconds=limits.fetch_s, at_once=limits.fetches_at_once
    )
    metrics = Metrics(EngineCollector(engine))
    middleware.put_before(app, access=access, sign_in=sign_in, metrics=metrics, gallery=served.name)
    return app


def _is_first(shared: Path) -> bool:
    """Whether no process of this server was before: that one goes on with what an earlier server left."""
    try:
        (shared / "first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _create_gallery_app(mounted: MountedApp, *, asks_token: bool, has_gradio: bool) -> FastAPI:
    """The routes of a gallery's page and API; what they answer with is found in the application's state."""

    @asynccontextmanager
    async def end_gradio(_: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.sign_in.close()
        await mounted.close()

    app = make_api(asks_token=asks_token, lifespan=end_gradio)
    app.state.gradio, app.state.has_gradio = mounted, has_gradio
    add_error_handlers(app)
    for router in (sign_in_router, shell.router, static_files.router, api_docs.router):
        app.router.routes += router.routes
    add_last_routes(app)
    gradio = mounted if has_gradio else _refuse_gradio
    app.router.routes += [Route(GRADIO, gradio), Route(GRADIO + "/{path:path}", gradio)]
    return app


async def _refuse_gradio(_: Request) -> Response:
    """Its conversations take several requests, which would reach processes that know nothing of each other."""
    raise ApiError("the Gradio app needs a server of one process: start one without --workers", status=404)


def _place_gallery(root_path: str, gallery: str | None) -> str:
    """The path below which a gallery of a server is, without a slash at its end: the server's own for the only one."""
    return root_path if gallery is None else f"{root_path}/g/{gallery}"


def _choose_app(apps: dict[str | None, FastAPI], middleware: _Middleware) -> ASGIApp:
    """The application of the only gallery, or all of those with names and what is beside them."""
    if None in apps:
        return apps[None]
    named = {name: app for name, app in apps.items() if name is not None}
    access, sign_in, metrics = middleware.access, middleware.sign_in, Metrics()
    hall = _create_list_app(named, asks_token=access.asks_token)
    middleware.put_before(hall, access=access, sign_in=sign_in, metrics=metrics)
    hidden = replace(access, galleries=frozenset(), is_hidden=True)
    none_app, of_none = FastAPI(openapi_url=None), sign_in.for_gallery(hidden)

    async def refuse(request: Request) -> Response:
        return of_none.refuse_unknown(request.scope)

    none_app.router.routes[:] = [*sign_in_router.routes, Route("/{path:path}", refuse)]
    middleware.put_before(none_app, access=hidden, sign_in=of_none, metrics=metrics)
    return _SeveralGalleries(named, list_app=hall, none_app=none_app, root_path=middleware.root_path)


class _SeveralGalleries:
    """Passes requests on to the application of a gallery, by the path.

    Args:
        galleries: by their names.
        list_app: what answers beside them, and begins and ends with the server.
        none_app: what answers where there is no gallery of a name, as one that the visitor may not look into does.
        root_path: below which the server lives; a proxy may have taken it away.
    """

    def __init__(
        self, galleries: Mapping[str, ASGIApp], *, list_app: ASGIApp, none_app: ASGIApp, root_path: str
    ) -> None:
        self._galleries, self._list_app, self._none_app = galleries, list_app, none_app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        app = self._list_app if scope["type"] != "http" else self._choose(scope)
        await app(scope, receive, send)

    def _choose(self, scope: Scope) -> ASGIApp:
        """What answers a request, whose path becomes one that it knows."""
        within = strip_root_path(scope["path"], self._root_path)
        found = _GALLERY.fullmatch(scope["path"] if within is None else within)
        if found is None:
            return self._list_app
        name, rest = found[1], found[2]
        below = _place_gallery(self._root_path, name)
        if rest is None:
            return redirect_to_slash(scope, below)
        if name not in self._galleries:
            scope["path"] = self._root_path + rest
            return self._none_app
        scope["path"] = below + rest
        return self._galleries[name]


def _create_list_app(galleries: Mapping[str, FastAPI], *, asks_token: bool) -> FastAPI:
    """The application beside those of galleries, which begin and end with it."""

    @asynccontextmanager
    async def run_galleries(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for app in galleries.values():
                await running.enter_async_context(app.router.lifespan_context(app))
            yield

    app = make_api(
        asks_token=asks_token, lifespan=run_galleries,
        routers=(several_routes.router, several_routes.health_router, sign_in_router, static_files.router),
        summary="The galleries of a server; each has an API of its own.",
    )  # fmt: skip
    app.state.galleries = galleries
    add_error_handlers(app)
    app.router.routes.append(Route("/", _send_list))
    add_last_routes(app)
    return app


async def _send_list(request: Request) -> Response:
    listed = await list_galleries(request, NoParameters())
    galleries = []
    for entry in listed.galleries:
        may = ["search", *(["review"] if entry.can.review else []), *(["change"] if entry.can.write else [])]
        galleries.append({**entry.model_dump(), "may": ", ".join(may)})
    values = {"galleries": galleries, "who": name_signed_in(request), "styles": _LIST_STYLES}
    html = load_template("galleries.html").render(values)  # which escapes names
    return HTMLResponse(html, headers={"Cache-Control": "no-store"})
