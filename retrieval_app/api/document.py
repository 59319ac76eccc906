"""OpenAPI document of the API, and the factory of applications with its routes."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.types import Lifespan

from retrieval_app.api import (
    bulk_routes,
    certificate_routes,
    class_routes,
    duplicate_routes,
    gallery_routes,
    health_routes,
    image_routes,
    review_routes,
    search_routes,
    write_routes,
)
from retrieval_app.api.errors import add_error_handlers, describe_error_schemas
from retrieval_app.api.security.access import OPEN_PATHS, Require
from retrieval_app.api.security.rights import READ

_TOKEN = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "the server's token, or one of those with names; the roles are the rights that it must have",
    }
}
_SUMMARY = "Search a gallery of images, see how far results can be trusted, and fix its labels."
_ROUTERS = tuple(
    routes.router
    for routes in (
        search_routes,
        image_routes,
        gallery_routes,
        review_routes,
        certificate_routes,
        class_routes,
        bulk_routes,
        duplicate_routes,
        write_routes,
        health_routes,
    )
)


class Api(FastAPI):
    """An application whose OpenAPI document holds the schemas of failures, and the token where `requires_token`."""

    requires_token = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            parts = document["components"]
            parts["schemas"] = dict(sorted({**parts["schemas"], **describe_error_schemas()}.items()))
            if self.requires_token:
                parts["securitySchemes"] = _TOKEN
                for route in self.routes:
                    if isinstance(route, APIRoute) and route.include_in_schema and route.path not in OPEN_PATHS:
                        needed = (depends.dependency for depends in route.dependencies)
                        right = next((one.right for one in needed if isinstance(one, Require)), READ)
                        for method in route.methods or ():
                            document["paths"][route.path][method.lower()]["security"] = [{"token": [right]}]
        return super().openapi()


def make_api(
    *,
    requires_token: bool,
    lifespan: Lifespan[FastAPI] | None = None,
    routers: Sequence[APIRouter] = _ROUTERS,
    summary: str = _SUMMARY,
) -> FastAPI:
    """An application with the routes under /v1, which need a gallery in its state, and its error handlers."""
    app = Api(
        lifespan=lifespan,
        title="Image retrieval",
        summary=summary,
        version="1",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,  # their scripts would come from another host
        redirect_slashes=False,
    )
    add_error_handlers(app)
    app.requires_token = requires_token
    for router in routers:
        app.router.routes += router.routes  # `include_router` would build every route again, which is slow
    return app


def describe_api() -> dict[str, Any]:
    """The OpenAPI document of a server with a token."""
    return make_api(requires_token=True).openapi()
