"""Server of several galleries: the list of them, their health together, their metrics together."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field

from index.errors import GalleryError
from index.text import valid_text
from retrieval_app.api.gallery_routes import Permissions
from retrieval_app.api.health_routes import METRICS_TEXT, Health, get_health
from retrieval_app.api.metrics import render_joined
from retrieval_app.api.request_context import make_router, responses
from retrieval_app.api.schemas import Answer, NoParameters
from retrieval_app.api.security.access import require_metrics
from retrieval_app.api.security.rights import METRICS, READ, REVIEW, WRITE
from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.search_engine import Engine

router, health_router = make_router("galleries"), make_router("health")
_Alone = Annotated[NoParameters, Query()]
_SHOWN = 4


class GalleryEntry(Answer):
    """One of the galleries; `version` and `images` are null where it holds no image that can be searched."""

    name: str
    path: str = Field(description="of its page and of its API, from the address of the server on: g/NAME/")
    state: Literal["ready", "failed"]
    version: str | None
    images: int | None
    shown: list[int] = Field(description="the ids of a few images, to show what it is of")
    permissions: Permissions


class GalleryList(Answer):
    """The galleries that the one who asks may look into, in the order in which the server has them."""

    galleries: list[GalleryEntry]


class AllReady(Answer):
    """Every gallery can be searched."""

    status: Literal["ready"]


def find_rights(request: Request, gallery: FastAPI) -> frozenset[str]:
    """What the one who asks may in one of the galleries."""
    rights: frozenset[str] = gallery.state.sign_in.find_rights(request.scope)
    return rights


@router.get("/galleries", **responses(GalleryList))
async def list_galleries(request: Request, _: _Alone) -> GalleryList:
    """Which galleries there are.

    Those that the one who asks may look into; the API of each is below its path.
    """
    galleries: dict[str, FastAPI] = request.app.state.galleries
    told = [(name, app, find_rights(request, app)) for name, app in galleries.items()]
    seen = [one for one in told if READ in one[2]]
    return GalleryList(galleries=await asyncio.to_thread(lambda: [_describe(*one) for one in seen]))


def _describe(name: str, app: FastAPI, rights: frozenset[str]) -> GalleryEntry:
    access = app.state.access
    permissions = Permissions(
        review=REVIEW in rights, write=access.writable and WRITE in rights, fetch=access.fetches
    )
    entry = GalleryEntry(
        name=valid_text(name),
        path=f"g/{name}/",
        state="failed",
        version=None,
        images=None,
        shown=[],
        permissions=permissions,
    )
    try:
        app.state.engine.live.follow_decisions()
        snapshot = app.state.engine.snapshot()
        shown = [image.id for image in snapshot.gallery.sample(_SHOWN, seed=0)]
    except (NotReadyError, GalleryError, OSError):  # its own pages and the log say why
        return entry
    told = {"state": "ready", "version": snapshot.version, "images": snapshot.gallery.count, "shown": shown}
    return entry.model_copy(update=told)


health_router.get("/health", **responses(Health))(get_health)


@health_router.get("/ready", **responses(AllReady))
async def get_readiness(request: Request, _: _Alone) -> dict[str, str]:
    """Is every gallery ready?

    503 where one of them cannot be searched; at its own /v1/ready those who may know are told why.
    """
    galleries: dict[str, FastAPI] = request.app.state.galleries

    async def check(engine: Engine) -> None:
        await engine.probe.check(engine.snapshot())

    try:
        await asyncio.gather(*(check(app.state.engine) for app in galleries.values()))
    except NotReadyError as error:
        message = "not every gallery can be searched at the moment; the server's log says why"
        raise NotReadyError(message) from error
    return {"status": "ready"}


@health_router.get("/metrics", dependencies=[Depends(require_metrics)], **responses(None, also=METRICS_TEXT))
async def get_metrics(request: Request, _: _Alone) -> Response:
    """What the server counts.

    As each gallery's own, with its name as the label `gallery`, of those whose metrics the one who asks may read.
    """
    galleries: dict[str, FastAPI] = request.app.state.galleries
    told = {name: app.state.metrics for name, app in galleries.items() if METRICS in find_rights(request, app)}
    text = await asyncio.to_thread(render_joined, {"": request.app.state.metrics, **told})
    return Response(text, media_type=CONTENT_TYPE_LATEST)
