"""Routes of a server of several galleries: their list, and their health together."""

import asyncio
from contextlib import suppress
from typing import Any, Literal

from fastapi import FastAPI, Request
from pydantic import Field

from index.errors import GalleryError
from index.text import valid_text
from retrieval_app.api.gallery_routes import Permissions
from retrieval_app.api.health_routes import Health, get_health
from retrieval_app.api.request_context import make_router, responses
from retrieval_app.api.schemas import Answer
from retrieval_app.api.security.rights import READ, REVIEW, WRITE
from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.search_engine import Engine

router, health_router = make_router("galleries"), make_router("health")
_SHOWN = 4


class GalleryEntry(Answer):
    """One of the galleries; `version` and `images` are null where it holds no image that can be searched."""

    name: str
    path: str = Field(description="of its page and of its API, from the address of the server on: g/NAME/")
    state: Literal["ready", "failed"]
    version: str | None
    images: int | None
    shown: list[int] = Field(description="the ids of a few images")
    permissions: Permissions


class GalleryList(Answer):
    """The galleries that the visitor may search, in the order in which the server has them."""

    galleries: list[GalleryEntry]


def _list_allowed(request: Request) -> dict[str, tuple[FastAPI, frozenset[str]]]:
    """The galleries that the visitor may search, with all rights there."""
    galleries: dict[str, FastAPI] = request.app.state.galleries
    found = {name: (app, app.state.sign_in.find_rights(request.scope)) for name, app in galleries.items()}
    return {name: (app, rights) for name, (app, rights) in found.items() if READ in rights}


@router.get("/galleries", **responses(GalleryList))
async def list_galleries(request: Request) -> GalleryList:
    """The galleries that the visitor may search; the API of each is below its path."""
    allowed = _list_allowed(request)
    entries = await asyncio.to_thread(lambda: [_describe(name, *one) for name, one in allowed.items()])
    return GalleryList(galleries=entries)


def _describe(name: str, app: FastAPI, rights: frozenset[str]) -> GalleryEntry:
    access, engine = app.state.access, app.state.engine
    may_write = access.writable and WRITE in rights
    may_move = may_write and access.disk_changes is not None
    permissions = Permissions(review=REVIEW in rights, write=may_write, move=may_move)
    about: dict[str, Any] = {"state": "failed", "version": None, "images": None, "shown": []}
    with suppress(NotReadyError, GalleryError, OSError):  # its own pages and the log say why
        engine.live.follow_decisions()
        snapshot = engine.snapshot()
        shown = [image.id for image in snapshot.gallery.sample(_SHOWN, seed=0)]
        about = {"state": "ready", "version": snapshot.version, "images": snapshot.gallery.count, "shown": shown}
    return GalleryEntry(name=valid_text(name), path=f"g/{name}/", permissions=permissions, **about)


health_router.get("/health", **responses(Health))(get_health)


@health_router.get("/ready", **responses(Health))
async def get_readiness(request: Request) -> dict[str, str]:
    """Is every gallery ready? 503 where one cannot be searched; its own /v1/ready says why."""

    async def check(engine: Engine) -> None:
        await engine.probe.check(engine.snapshot())

    try:
        await asyncio.gather(*(check(app.state.engine) for app in request.app.state.galleries.values()))
    except NotReadyError as error:
        message = "not every gallery can be searched at the moment; the server's log says why"
        raise NotReadyError(message) from error
    return {"status": "ready"}
