"""Scripts and styles of the page, read once and served from memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

router = APIRouter(include_in_schema=False)
_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


KeptFile = tuple[bytes, str, str]
"""Content, media type and ETag of a file."""


@cache
def read_files() -> dict[str, KeptFile]:
    """Content, media type and ETag of every file, by its path below `static`."""
    return dict(_read_below(files("retrieval_app.page").joinpath("static"), ""))


def _read_below(folder: Traversable, path: str) -> Iterator[tuple[str, KeptFile]]:
    for entry in folder.iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            yield from _read_below(entry, f"{path}{entry.name}/")
        elif kind is not None:
            content = entry.read_bytes()
            yield path + entry.name, (content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@router.get("/favicon.ico")
async def send_icon(request: Request) -> Response:
    """The page's icon, where browsers look for it unasked."""
    return await send_file("icon.svg", request)


@router.get("/page/{name:path}")
async def send_file(name: str, request: Request) -> Response:
    """One file."""
    return send_kept(read_files(), name, request)


def send_kept(kept: Mapping[str, KeptFile], name: str, request: Request) -> Response:
    """One of some files; a browser keeps it, and asks whether it is still the same."""
    if name not in kept:
        return PlainTextResponse("no such file", status_code=404)
    content, kind, tag = kept[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):  # as it is, or as the weak one of compressed files
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
