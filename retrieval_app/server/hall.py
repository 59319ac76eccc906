"""What a server of several galleries answers beside them: the list, its page, whether all is well, who signs in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.routing import Route

from retrieval_app.api.counters import Metrics
from retrieval_app.api.document import make_api
from retrieval_app.api.errors import add_error_handlers, add_last_routes
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.api.several import several_routes
from retrieval_app.api.several.gallery_list import list_galleries
from retrieval_app.page import static_files
from retrieval_app.page.galleries_page import draw_galleries
from retrieval_app.page.shell import name_signed_in
from retrieval_app.server.doors import Doors, compress


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
