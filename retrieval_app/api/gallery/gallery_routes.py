"""The gallery as a whole: what it is, what it can be narrowed by, how good it is, and where its images lie."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from retrieval_app.api.answers import send_json
from retrieval_app.api.errors import describe_errors
from retrieval_app.api.gallery.gallery_facts import describe_gallery
from retrieval_app.api.gallery.gallery_schemas import (
    Computing,
    FacetList,
    Failed,
    GalleryFacts,
    GalleryMap,
    QualityReport,
)
from retrieval_app.api.schemas import NoParameters, Selection
from retrieval_app.api.search.conditions import read_condition
from retrieval_app.api.security.access import may_review, may_write, sees_folders
from retrieval_app.insights.background import Computed
from retrieval_app.insights.facet_filters import count_facets
from retrieval_app.serving.search_engine import Engine

router = APIRouter(prefix="/v1", tags=["gallery"])
_FAILED = "it could not be computed; the server's log says why"
COMPUTING: dict[int | str, dict[str, Any]] = {
    202: {"model": Computing, "description": "It is being computed: ask again."}
}


@router.get("/gallery", response_model=GalleryFacts, responses=describe_errors(), summary="What is served")
async def show_gallery(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """The gallery's version, size, model, labels and index, what the server allows, and what scores mean."""
    engine: Engine = request.app.state.engine
    can = {"review": may_review(request), "write": may_write(request)}
    return send_json(await engine.run(describe_gallery, engine.snapshot(), can=can, config=engine.config))


@router.get(
    "/facets", response_model=FacetList, responses=describe_errors(), summary="What images can be narrowed by"
)
async def show_facets(request: Request, selection: Annotated[Selection, Query()]) -> Response:
    """Labels, folders, sources and metadata of few values, with counts and the condition that selects each."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    folders = sees_folders(request)
    where = read_condition(selection.where, selection.text, folders=folders)
    facets = await engine.look_up(count_facets, snapshot.gallery, where, folders=folders)
    return send_json({"version": snapshot.version, **facets.to_json()})


@router.get(
    "/quality",
    response_model=QualityReport | Failed,
    responses={**COMPUTING, **describe_errors()},
    summary="How well the gallery finds its own labels",
)
async def show_quality(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """Recall, the classes and queries that do worst, scores of same and different class, confusion."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    quality = snapshot.insights.quality
    if quality.value is None:
        return send_unready(request, quality)
    return send_json({"state": "ready", "version": snapshot.version, **quality.value.to_json()})


@router.get(
    "/map",
    response_model=GalleryMap | Failed,
    responses={**COMPUTING, **describe_errors()},
    summary="Where every image lies on a map",
)
async def show_map(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """Ids, places and labels of the images, as columns."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    layout = snapshot.insights.map
    if layout.value is None:
        return send_unready(request, layout)
    return send_json({"state": "ready", "version": snapshot.version, **layout.value.to_json()})


def send_unready(request: Request, computed: Computed[Any]) -> Response:
    """How far a result is that is not there."""
    if computed.state == "computing":
        return send_json(computed.to_json(), status=202)
    message = computed.message or "there is nothing to compute it from"
    if computed.message is not None and not sees_folders(request):
        message = _FAILED  # what went wrong may name folders of the machine
    return send_json({"state": "failed", "message": message})
