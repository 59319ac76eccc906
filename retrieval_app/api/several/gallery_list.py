"""The galleries of a server that has several, as somebody sees them who may look into some of them."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import FastAPI, Request
from pydantic import Field

from index.errors import GalleryError
from index.text import valid_text
from retrieval_app.api.gallery.gallery_schemas import Rights
from retrieval_app.api.schemas import Answer
from retrieval_app.api.security.rights import READ, REVIEW, WRITE
from retrieval_app.serving.errors import NotReadyError

_SHOWN = 4


class GalleryEntry(Answer):
    """One of the galleries; `version` and `images` are null where it holds no image that can be searched."""

    name: str
    path: str = Field(description="of its page and of its API, from the address of the server on: g/NAME/")
    state: Literal["ready", "failed"]
    version: str | None
    images: int | None
    shown: list[int] = Field(description="the ids of a few images, to show what it is of")
    can: Rights


class GalleryList(Answer):
    """The galleries that the one who asks may look into, in the order in which the server has them."""

    galleries: list[GalleryEntry]


def find_rights(request: Request, gallery: FastAPI) -> frozenset[str]:
    """What the one who asks may in one of the galleries."""
    rights: frozenset[str] = gallery.state.sign_in.find_rights(request.scope)
    return rights


async def list_galleries(request: Request) -> GalleryList:
    """Those that the one who asks may look into; reading a few lines of their catalogues takes a thread."""
    galleries: dict[str, FastAPI] = request.app.state.galleries
    told = [(name, app, find_rights(request, app)) for name, app in galleries.items()]
    seen = [one for one in told if READ in one[2]]
    return GalleryList(galleries=await asyncio.to_thread(lambda: [_describe(*one) for one in seen]))


def _describe(name: str, app: FastAPI, rights: frozenset[str]) -> GalleryEntry:
    access = app.state.access
    can = Rights(review=REVIEW in rights, write=access.writable and WRITE in rights, fetch=access.fetches)
    entry = GalleryEntry(
        name=valid_text(name), path=f"g/{name}/", state="failed", version=None, images=None, shown=[], can=can
    )
    try:
        app.state.engine.live.follow_decisions()
        snapshot = app.state.engine.snapshot()
        shown = [image.id for image in snapshot.gallery.sample(_SHOWN, seed=0)]
    except (NotReadyError, GalleryError, OSError):  # its own pages and the log say why
        return entry
    told = {"state": "ready", "version": snapshot.version, "images": snapshot.gallery.count, "shown": shown}
    return entry.model_copy(update=told)
