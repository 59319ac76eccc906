"""An application with all routes of the API, and the OpenAPI document by which it describes itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import Lifespan

from retrieval_app.api.errors import describe_error_schemas
from retrieval_app.api.routes import OPEN_ROUTES, ROUTES

_TOKEN = {"token": {"type": "http", "description": "the server's token", "scheme": "bearer"}}


class Api(FastAPI):
    """An application whose document tells of failures, and of the token, without a model of each on every route.

    Attributes:
        asks_token: whether the document says that the server's token is asked for.
    """

    asks_token = False

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            parts = document["components"]
            parts["schemas"] = dict(sorted({**parts["schemas"], **describe_error_schemas()}.items()))
            if self.asks_token:
                parts["securitySchemes"] = _TOKEN
                opened = {route.path for routes in OPEN_ROUTES for route in routes.router.routes}
                for path in document["paths"].keys() - opened:
                    for operation in document["paths"][path].values():
                        operation["security"] = [{"token": []}]
        return super().openapi()


def make_api(*, asks_token: bool, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """The routes under /v1; they can answer once the application's state has what they ask.

    Args:
        asks_token: whether its document says that the server's token is asked for.
        lifespan: of the application.
    """
    app = Api(
        lifespan=lifespan,
        title="Image retrieval",
        summary="Search a gallery of images, see how far results can be trusted, and mend its labels.",
        version="1",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # its scripts would come from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    app.asks_token = asks_token
    for routes in ROUTES:
        app.router.routes += routes.router.routes  # to include routers makes every route anew, which takes long
    return app


def describe_api() -> dict[str, Any]:
    """The OpenAPI document of every server that asks for a token."""
    return make_api(asks_token=True).openapi()
