"""Scripts and styles of the page, and the API's documentation by Swagger UI, read once and served from memory."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse

router = APIRouter(include_in_schema=False)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
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
KeptFile = tuple[bytes, str, str]
"""Content, media type and ETag of a file."""


def keep(content: bytes, ending: str) -> KeptFile:
    """A file to serve from memory, of the media type of its ending."""
    return content, _TYPES[ending], f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@cache
def read_files() -> dict[str, KeptFile]:
    """Every file by its path below `static`."""
    folder = Path(__file__).with_name("static")
    found = (file for file in folder.rglob("*") if file.suffix in _TYPES)
    return {file.relative_to(folder).as_posix(): keep(file.read_bytes(), file.suffix) for file in found}


@router.get("/favicon.ico")
async def send_icon(request: Request) -> Response:
    """The page's icon, where browsers look for it unasked."""
    return await send_file("icon.svg", request)


@router.get("/page/{name:path}")
async def send_file(name: str, request: Request) -> Response:
    """One file."""
    return send_kept(read_files(), name, request)


def send_kept(kept: Mapping[str, KeptFile], name: str, request: Request) -> Response:
    """One of some files; a browser caches it, and revalidates it by its ETag."""
    if name not in kept:
        return PlainTextResponse("no such file", status_code=404)
    content, kind, tag = kept[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):  # as it is, or as the weak one of compressed files
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


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
