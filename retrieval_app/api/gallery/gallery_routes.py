"""The gallery as a whole: what it is, what it can be narrowed by, how good it is, and where its images lie."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from retrieval_app.api.answers import send_json
from retrieval_app.api.asking import Asked, AskedAlone, Asking, answers
from retrieval_app.api.gallery.gallery_facts import describe_gallery
from retrieval_app.api.gallery.gallery_schemas import (
    Computing,
    FacetList,
    Failed,
    GalleryFacts,
    GalleryMap,
    QualityReport,
)
from retrieval_app.api.schemas import FacetSelection
from retrieval_app.api.search.conditions import read_condition
from retrieval_app.api.security.access import may_fetch, may_review, may_write
from retrieval_app.insights.background import Computed
from retrieval_app.insights.facet_filters import FacetValues, count_facets

router = APIRouter(prefix="/v1", tags=["gallery"])
_FAILED = "it could not be computed; the server's log says why"
COMPUTING = {202: {"model": Computing, "description": "It is being computed: ask again."}}


@router.get("/gallery", operation_id="get_gallery", summary="What is served", **answers(GalleryFacts))
async def show_gallery(asked: AskedAlone) -> Response:
    """The gallery's version, size, model, labels and index, what the server allows, and what scores mean."""
    request = asked.request
    can = {"review": may_review(request), "write": may_write(request), "fetch": may_fetch(request)}
    return await asked.tell(
        describe_gallery, asked.snapshot, name=asked.engine.name, can=can, config=asked.engine.config
    )


@router.get("/facets", operation_id="list_facets", summary="What images can be narrowed by", **answers(FacetList))
async def show_facets(asked: Asked, selection: Annotated[FacetSelection, Query()]) -> Response:
    """Labels, folders, sources and metadata of few values, with counts and the condition that selects each.

    Of every facet the 50 most frequent values, or of those in which `find` occurs.
    """
    snapshot = asked.snapshot
    where = read_condition(selection.where, selection.text, folders=asked.folders)
    wanted = FacetValues(name=selection.facet, part=selection.find or "")
    facets = await asked.engine.look_up(
        count_facets, snapshot.gallery, where, folders=asked.folders, wanted=wanted
    )
    return send_json({"version": snapshot.version, **facets.to_json()})


@router.get(
    "/quality",
    operation_id="get_quality",
    summary="How well the gallery finds its own labels",
    **answers(QualityReport | Failed, also=COMPUTING),
)
async def show_quality(asked: AskedAlone) -> Response:
    """Recall, the classes and queries that do worst, scores of same and different class, confusion."""
    return _send_computed(asked, asked.snapshot.insights.quality)


@router.get(
    "/map",
    operation_id="get_map",
    summary="Where every image lies on a map",
    **answers(GalleryMap | Failed, also=COMPUTING),
)
async def show_map(asked: AskedAlone) -> Response:
    """Ids, places and labels of the images, as columns."""
    return _send_computed(asked, asked.snapshot.insights.map)


def _send_computed(asked: Asking, computed: Computed[Any]) -> Response:
    if computed.value is None:
        return send_unready(asked, computed)
    return send_json({"state": "ready", "version": asked.snapshot.version, **computed.value.to_json()})


def send_unready(asked: Asking, computed: Computed[Any]) -> Response:
    """How far a result is that is not there."""
    if computed.state == "computing":
        return send_json(computed.to_json(), status=202)
    message = computed.message or "there is nothing to compute it from"
    if computed.message is not None and not asked.folders:
        message = _FAILED  # what went wrong may name folders of the machine
    return send_json({"state": "failed", "message": message})
