"""Scripts and styles of the page, read once and served from memory."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

router = APIRouter(include_in_schema=False)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
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
