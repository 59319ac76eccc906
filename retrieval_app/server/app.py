"""The app factory: a server's only gallery, or several below `/g/NAME/` beside their list, behind shared middleware."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from index.versions.annotations import annotations_folder
from retrieval_app.api import several_routes
from retrieval_app.api.document import make_api
from retrieval_app.api.errors import add_last_routes
from retrieval_app.api.security.access import Access, choose_access
from retrieval_app.api.security.addresses import LOCAL_PROXIES, strip_root_path
from retrieval_app.api.security.middleware import RootPath, Security, redirect_to_slash
from retrieval_app.api.security.sessions import read_secret
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.api.several_routes import list_galleries
from retrieval_app.page import shell, static_files
from retrieval_app.page.shell import draw_sign_in, name_signed_in
from retrieval_app.reports.standalone import load_template
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.search_engine import Engine

if TYPE_CHECKING:
    from retrieval_app.server.options import ServedGallery, ServeOptions

_GALLERY = re.compile(r"/g/([^/]+)(/.*)?", re.DOTALL)
_LIST_STYLES = ("core/base.css", "core/frame.css", "galleries/galleries.css")
_SMALLEST_COMPRESSED_BYTES = 1000  # what fits into one packet is as fast uncompressed


@contextmanager
def open_server_app(options: ServeOptions) -> Iterator[ServerApp]:
    """A server's application over its opened galleries, which are closed in the end."""
    with ExitStack() as opened:
        yield ServerApp(options, opened=opened)


def make_code(options: ServeOptions) -> str:
    """A code for the address of the first visit."""
    return SignIn(choose_access(options), draw=draw_sign_in, sessions=_place_sessions(options)).make_code()


def _place_sessions(options: ServeOptions) -> list[Path]:
    """Folders for ended sessions: places that the order of galleries does not change."""
    if options.tokens is not None:
        return [options.tokens.with_name(f"{options.tokens.name}.sessions")]
    return [annotations_folder(served.path) / "sessions" for served in options.galleries]


class ServerApp:
    """The application of a server: that of its only gallery, or those of several beside their list."""

    def __init__(self, options: ServeOptions, *, opened: ExitStack) -> None:
        self._options, self._opened = options, opened
        sessions = _place_sessions(options)
        self._access = choose_access(options, secret=None if options.tokens is None else read_secret(sessions[0]))
        if self._access.book is not None:
            self._access.book.warn_of_others(self._access.galleries)
        self._logs = {
            served.name or "": opened.enter_context(closing(ActivityLog(served.path))) for served in options.galleries
        }
        self._sign_in = SignIn(
            self._access,
            draw=draw_sign_in,
            sessions=sessions,
            session_s=options.connections.session_s,
            root_path=options.root_path,
            logs=self._logs,
        )
        self._galleries = {served.name: self._open_gallery(served) for served in options.galleries}
        self.app: ASGIApp = self._galleries[None] if None in self._galleries else self._join()

    def end(self) -> None:
        """Cancel long work: the server ends."""
        for app in self._galleries.values():
            app.state.engine.refuse_costly()
            app.state.jobs.stop()

    def _protect(self, app: FastAPI, *, access: Access, sign_in: SignIn, gallery: str | None = None) -> None:
        """Put the middleware around an application, and its access rules into its state.

        Compression is safe (BREACH): bodies hold no secrets, and other origins are refused.
        """
        app.state.access, app.state.sign_in = access, sign_in
        options = self._options
        app.add_middleware(GZipMiddleware, minimum_size=_SMALLEST_COMPRESSED_BYTES, compresslevel=5)
        app.add_middleware(Security, limits=options.limits, access=access, sign_in=sign_in)
        app.add_middleware(RootPath, root_path=self._place(gallery))
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=[*options.trusted_proxies] or LOCAL_PROXIES)

    def _place(self, gallery: str | None) -> str:
        """The path below which a gallery is, without a slash at its end."""
        return self._options.root_path + ("" if gallery is None else f"/g/{gallery}")

    def _open_gallery(self, served: ServedGallery) -> FastAPI:
        options, limits, opened = self._options, self._options.limits, self._opened
        engine = Engine(served.path, config=limits, name=served.name)
        opened.callback(engine.close)
        review, log = ReviewStore.of_gallery(served.path), self._logs[served.name or ""]
        opened.callback(review.close)
        jobs = Jobs(
            served.path, on_change=engine.live.refresh, open_gallery=engine.open_decided, limits=limits, log=log
        )
        opened.callback(jobs.close)
        engine.live.watch(poll_s=limits.poll_s)
        if options.writable:
            jobs.resume()
        access, sign_in = self._access, self._sign_in
        if served.name is not None:
            folder = access.disk_changes and access.disk_changes / served.name
            access = replace(access, galleries=frozenset((served.name,)), is_hidden=True, disk_changes=folder)
            sign_in = sign_in.for_gallery(access)
        app = _create_gallery_app(requires_token=access.requires_token)
        app.state.engine, app.state.review, app.state.jobs, app.state.log = engine, review, jobs, log
        app.state.is_one_of_several = served.name is not None
        self._protect(app, access=access, sign_in=sign_in, gallery=served.name)
        return app

    def _join(self) -> ASGIApp:
        """Routes requests by their path to a gallery, to the list of galleries, or to one that refuses them."""
        named = {name: app for name, app in self._galleries.items() if name is not None}
        list_app = _create_list_app(named, requires_token=self._access.requires_token)
        self._protect(list_app, access=self._access, sign_in=self._sign_in)
        hidden = replace(self._access, galleries=frozenset(), is_hidden=True)
        none_app, of_none = FastAPI(openapi_url=None), self._sign_in.for_gallery(hidden)

        async def refuse(request: Request) -> Response:
            return of_none.refuse_unknown(request.scope)

        none_app.router.routes[:] = [*sign_in_router.routes, Route("/{path:path}", refuse)]
        self._protect(none_app, access=hidden, sign_in=of_none)

        async def route(scope: Scope, receive: Receive, send: Send) -> None:
            found = None
            if scope["type"] == "http":
                within = strip_root_path(scope["path"], self._options.root_path)  # unless a proxy has taken that away
                found = _GALLERY.fullmatch(scope["path"] if within is None else within)
            app: ASGIApp = list_app
            if found is not None:
                name, rest = found[1], found[2]
                if rest is None:
                    app = redirect_to_slash(scope, self._place(name))
                elif name in named:
                    app, scope["path"] = named[name], self._place(name) + rest
                else:  # answers as a gallery does that the visitor may not look into
                    app, scope["path"] = none_app, self._options.root_path + rest
            await app(scope, receive, send)

        return route


def _create_gallery_app(*, requires_token: bool) -> FastAPI:
    """The routes of a gallery's page and API, which find the gallery in the application's state."""

    @asynccontextmanager
    async def close_sign_in(_: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.sign_in.close()

    app = make_api(requires_token=requires_token, lifespan=close_sign_in)
    for router in (sign_in_router, shell.router, static_files.router):
        app.router.routes += router.routes
    add_last_routes(app)
    return app


def _create_list_app(galleries: Mapping[str, FastAPI], *, requires_token: bool) -> FastAPI:
    """The application of the list; those of the galleries begin and end with it."""

    @asynccontextmanager
    async def run_galleries(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for app in galleries.values():
                await running.enter_async_context(app.router.lifespan_context(app))
            yield

    app = make_api(
        requires_token=requires_token,
        lifespan=run_galleries,
        routers=(several_routes.router, several_routes.health_router, sign_in_router, static_files.router),
        summary="The galleries of a server; each has an API of its own.",
    )
    app.state.galleries = galleries
    app.router.routes.append(Route("/", _send_list))
    add_last_routes(app)
    return app


async def _send_list(request: Request) -> Response:
    galleries = []
    for entry in (await list_galleries(request)).galleries:
        may = {"search": True, "review": entry.permissions.review, "change": entry.permissions.write}
        galleries.append(
            {**entry.model_dump(), "may": ", ".join(name for name, is_allowed in may.items() if is_allowed)}
        )
    values = {"galleries": galleries, "who": name_signed_in(request), "styles": _LIST_STYLES}
    html = load_template("galleries.html").render(values)  # which escapes names
    return HTMLResponse(html, headers={"Cache-Control": "no-store"})
