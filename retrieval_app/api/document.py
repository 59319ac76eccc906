"""An application with all routes of the API, and the OpenAPI document by which it describes itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import Lifespan

from retrieval_app.api.routes import OPEN_ROUTES, ROUTES
from retrieval_app.api.security.access import describe_token


def make_api(*, asks_token: bool, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """The routes under /v1; they can answer once the application's state has what they ask.

    Args:
        asks_token: whether its document says that the server's token is asked for.
        lifespan: of the application.
    """
    app = FastAPI(
        lifespan=lifespan,
        title="Image retrieval",
        summary="Search a gallery of images, see how far results can be trusted, and mend its labels.",
        version="1",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # its scripts would come from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    for routes in ROUTES:
        is_closed = asks_token and routes not in OPEN_ROUTES
        app.include_router(routes.router, dependencies=[describe_token()] if is_closed else [])
    return app


def describe_api() -> dict[str, Any]:
    """The OpenAPI document of every server that asks for a token."""
    return make_api(asks_token=True).openapi()
