"""Joining what answers for a server: its galleries, here or in processes of their own, behind one entrance."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval_app.api import several_routes
from retrieval_app.api.counters import EngineCollector, Metrics
from retrieval_app.api.document import make_api
from retrieval_app.api.errors import add_error_handlers, add_last_routes
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.front_door import redirect_to_slash
from retrieval_app.api.security.root_path import strip_root_path
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.api.several_routes import list_galleries
from retrieval_app.gradio_app.mounted import GradioProcess
from retrieval_app.page import static_files
from retrieval_app.page.shell import name_signed_in
from retrieval_app.reports.standalone import load_template
from retrieval_app.server.doors import Doors, compress, place_gallery
from retrieval_app.server.entrance import Entrance, open_entrance
from retrieval_app.server.gallery_app import end_soon, open_gallery

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp

    from retrieval_app.server.options import ServedGallery, ServeOptions


_GALLERY = re.compile(r"/g/([^/]+)(/.*)?", re.DOTALL)


class Site:
    """Passes requests on; what stands before each application is the application's own.

    Args:
        galleries: by their names.
        hall: what answers beside them, and begins and ends with the server.
        nothing: what answers where there is no gallery of a name.
        root_path: below which the server lives; a proxy may have taken it away.
    """

    def __init__(
        self, galleries: Mapping[str, ASGIApp], *, hall: ASGIApp, nothing: ASGIApp, root_path: str = ""
    ) -> None:
        self._galleries, self._hall, self._nothing, self._root_path = galleries, hall, nothing, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        app = self._hall if scope["type"] != "http" else self._choose(scope)
        await app(scope, receive, send)

    def _choose(self, scope: Scope) -> ASGIApp:
        """What answers a request, whose path becomes one that it knows."""
        within = strip_root_path(scope["path"], self._root_path)
        found = _GALLERY.fullmatch(scope["path"] if within is None else within)
        if found is None:
            return self._hall
        name, rest = found[1], found[2]
        below = place_gallery(self._root_path, name)
        if rest is None:
            return redirect_to_slash(scope, below)
        if name not in self._galleries:
            scope["path"] = self._root_path + rest
            return self._nothing
        scope["path"] = below + rest
        return self._galleries[name]


STYLES = ("core/base.css", "core/frame.css", "galleries/galleries.css")


def draw_galleries(galleries: Iterable[Mapping[str, Any]], *, who: str | None = None) -> str:
    """The page as HTML, of entries as the API lists them, with names escaped; `who` is signed in and can leave."""
    entries = [{**gallery, "may": _say_rights(gallery["can"])} for gallery in galleries]
    return load_template("galleries.html").render(galleries=entries, who=who, styles=STYLES)


def _say_rights(can: Mapping[str, bool]) -> str:
    """What of a gallery its visitor may."""
    return ", ".join(["search", *(["review"] if can["review"] else []), *(["change"] if can["write"] else [])])


def create_hall(galleries: Mapping[str, FastAPI], *, access: Access, sign_in: SignIn, doors: Doors) -> FastAPI:
    """The application beside those of galleries, which begin and end with it."""

    @asynccontextmanager
    async def run_galleries(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for app in galleries.values():
                await running.enter_async_context(app.router.lifespan_context(app))
            yield

    hall = make_api(
        asks_token=access.asks_token, lifespan=run_galleries,
        routers=(several_routes.router, sign_in_router, static_files.router),
        summary="The galleries of a server; each has an API of its own.",
    )  # fmt: skip
    hall.state.galleries = galleries
    add_error_handlers(hall)
    hall.router.routes.append(Route("/", _send_list))
    add_last_routes(hall)
    compress(hall)
    doors.put_before(hall, access=access, sign_in=sign_in, metrics=Metrics())
    return hall


async def _send_list(request: Request) -> Response:
    listed = await list_galleries(request)
    html = draw_galleries([entry.model_dump() for entry in listed.galleries], who=name_signed_in(request))
    return HTMLResponse(html, headers={"Cache-Control": "no-store"})


def create_nothing(*, access: Access, sign_in: SignIn, doors: Doors, metrics: Metrics) -> FastAPI:
    """What answers where there is no gallery of a name: as one that the visitor may not look into does."""

    async def refuse(request: Request) -> Response:
        return sign_in.refuse_unknown(request.scope)

    nothing = FastAPI(openapi_url=None)
    nothing.router.routes[:] = [*sign_in_router.routes, Route("/{path:path}", refuse)]
    compress(nothing)
    doors.put_before(nothing, access=access, sign_in=sign_in, metrics=metrics)
    return nothing


_Joined: TypeAlias = "tuple[ASGIApp, Callable[[], None]]"


@dataclass(frozen=True, slots=True)
class Assembled:
    """A server that can be run.

    Attributes:
        app: answers everything.
        make_code: makes a code for the address of the first visit.
        end: to be called when it is to end: what would go on for long does not.
    """

    app: ASGIApp
    make_code: Callable[[], str]
    end: Callable[[], None]


@contextmanager
def assemble(options: ServeOptions) -> Iterator[Assembled]:
    """A server's applications over its opened galleries; everything they hold is let go at the end.

    Raises:
        GalleryError: a gallery cannot be opened.
        InputError: the file of tokens cannot be used.
    """
    with ExitStack() as opened:
        entrance = open_entrance(opened, options)
        join = _join_here if options.workers == 1 else _join_workers
        app, end = join(opened, options, entrance)
        yield Assembled(app, entrance.sign_in.make_code, end)


def _join_here(opened: ExitStack, options: ServeOptions, entrance: Entrance) -> _Joined:
    """All galleries in this process."""
    gradio = GradioProcess()
    opened.callback(gradio.close)
    apps = {
        served.name: _open_behind(opened, served, options, entrance=entrance, gradio=gradio)
        for served in options.galleries
    }

    def end() -> None:
        for app in apps.values():
            end_soon(app)

    return _choose_app(apps, entrance), end


def _join_workers(opened: ExitStack, options: ServeOptions, entrance: Entrance) -> _Joined:
    """One gallery in processes of their own, which answer what passes here; most servers need nothing of these."""
    from retrieval_app.server.workers.front import create_front
    from retrieval_app.server.workers.supervisor import supervise
    from retrieval_app.server.workers.worker_counts import WorkerCounts

    shared = Path(opened.enter_context(TemporaryDirectory(prefix="retrieval-serve-")))
    supervisor = opened.enter_context(supervise(options, shared=shared))
    counts = WorkerCounts(supervisor)
    app, metrics = create_front(supervisor, counts=counts, request_s=options.limits.request_s), Metrics(counts)
    entrance.doors.put_before(app, access=entrance.access, sign_in=entrance.sign_in, metrics=metrics)
    return app, supervisor.begin_end


def _open_behind(
    opened: ExitStack, served: ServedGallery, options: ServeOptions, *, entrance: Entrance, gradio: GradioProcess
) -> FastAPI:
    """The application of a gallery behind the doors of its server."""
    access, sign_in = entrance.access, entrance.sign_in
    if served.name is not None:
        access = replace(access, galleries=frozenset((served.name,)), is_hidden=True)
        sign_in = sign_in.for_gallery(access)
    app = opened.enter_context(
        open_gallery(
            served, options, log=entrance.logs[served.name or ""], gradio=gradio,
            root_path=entrance.doors.root_path,
        )
    )  # fmt: skip
    metrics = Metrics(EngineCollector(app.state.engine))
    entrance.doors.put_before(app, access=access, sign_in=sign_in, metrics=metrics, gallery=served.name)
    return app


def _choose_app(apps: dict[str | None, FastAPI], entrance: Entrance) -> ASGIApp:
    """The application of the only gallery, or all of those with names and what is beside them."""
    if None in apps:
        return apps[None]
    access, sign_in, doors = entrance.access, entrance.sign_in, entrance.doors
    named = {name: app for name, app in apps.items() if name is not None}
    nowhere = replace(access, galleries=frozenset(), is_hidden=True)
    hall = create_hall(named, access=access, sign_in=sign_in, doors=doors)
    metrics: Metrics = hall.state.metrics
    nothing = create_nothing(access=nowhere, sign_in=sign_in.for_gallery(nowhere), doors=doors, metrics=metrics)
    return Site(named, hall=hall, nothing=nothing, root_path=doors.root_path)
