"""The API's interactive documentation: Swagger UI over the server's document, from files that are installed."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from retrieval_app.page.static_files import KeptFile, keep, send_kept

router = APIRouter(include_in_schema=False)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The API</title>
<link rel="icon" href="../page/icon.svg">
<link rel="stylesheet" href="swagger-ui.css">
</head>
<body>
<main id="api"></main>
<script src="swagger-ui-bundle.js"></script>
<script src="start.js"></script>
</body>
</html>
"""
_START = """'use strict';
SwaggerUIBundle({
  url: '../v1/openapi.json',
  dom_id: '#api',
  deepLinking: true,
  validatorUrl: null, // it would be told the document's address
  queryConfigEnabled: false, // an address must not choose another document
});
"""


@cache
def read_docs() -> dict[str, KeptFile]:
    """Every file of the documentation by its name; Swagger UI's come with the releases of fastapi-offline."""
    folder = files("fastapi_offline").joinpath("static")
    names = ("swagger-ui-bundle.js", "swagger-ui.css")
    read = {name: keep(folder.joinpath(name).read_bytes(), Path(name).suffix) for name in names}
    return read | {"start.js": keep(_START.encode(), ".js")}


@router.get("/docs")
async def add_slash() -> Response:
    """The way to the page, whose own addresses are relative to it."""
    return RedirectResponse("docs/")


@router.get("/docs/")
async def send_docs() -> Response:
    """The page."""
    return HTMLResponse(_PAGE)


@router.get("/docs/{name}")
async def send_docs_file(name: str, request: Request) -> Response:
    """One of its files."""
    return send_kept(read_docs(), name, request)
