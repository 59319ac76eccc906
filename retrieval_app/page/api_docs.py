"""The API's interactive documentation: Swagger UI over the server's document, from files that are installed."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from retrieval_app.page.static_files import KeptFile, send_kept

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
_PACKAGE = "fastapi_offline"  # which has Swagger UI's files, and brings new ones with its releases
_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


@cache
def read_docs() -> dict[str, KeptFile]:
    """Content, media type and ETag of every file of the documentation, by its name."""
    folder = files(_PACKAGE).joinpath("static")
    read = {name: (folder.joinpath(name).read_bytes(), kind) for name, kind in _FILES.items()}
    read["start.js"] = (_START.encode(), "text/javascript")
    return {
        name: (content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        for name, (content, kind) in read.items()
    }


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
