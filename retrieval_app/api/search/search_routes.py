"""Searching: photos that are kept, queries of several parts, a photo as the body, many searches at once, embedding."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from index.text import printable_path
from retrieval_app.api.answers import IMAGE_BODY, send_json
from retrieval_app.api.errors import BODY_ERRORS, ApiError, describe_errors
from retrieval_app.api.row_fields import needs_row
from retrieval_app.api.schemas import (
    BatchRequest,
    BatchResponse,
    EmbedAnswer,
    ImageSearch,
    MemberQuery,
    NoParameters,
    PhotoAnswer,
    PhotoName,
    PhotoQuery,
    PhotoToken,
    SearchRequest,
    SearchResponse,
    VectorQuery,
    read_includes,
)
from retrieval_app.api.search.conditions import read_condition
from retrieval_app.api.search.search_answers import DESCRIBED_AT_ONCE, describe_search
from retrieval_app.api.security.access import sees_folders
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import Crop
from retrieval_app.serving.query import QueryPart, SearchQuery
from retrieval_app.serving.search_engine import Engine

router = APIRouter(prefix="/v1", tags=["search"])
MAX_CROPS = 64


@router.post(
    "/search",
    response_model=SearchResponse,
    responses=describe_errors(404, *BODY_ERRORS),
    summary="Search by images of the gallery, photos and vectors, alone or weighted together",
)
async def search(request: Request, body: SearchRequest, _: Annotated[NoParameters, Query()]) -> Response:
    """The members most like what the queries ask for; ids and scores, and what `include` names."""
    engine: Engine = request.app.state.engine
    folders = sees_folders(request)
    return send_json(await _search(engine, engine.snapshot(), body, folders=folders), folders=folders)


@router.post(
    "/search/batch",
    response_model=BatchResponse,
    responses=describe_errors(404, *BODY_ERRORS),
    summary="Many searches at once",
)
async def search_batch(request: Request, body: BatchRequest, _: Annotated[NoParameters, Query()]) -> Response:
    """The answers in the order of the searches, all from the same version of the gallery."""
    engine: Engine = request.app.state.engine
    crops = sum(getattr(part, "crop", None) is not None for one in body.searches for part in one.queries)
    if crops > MAX_CROPS:
        message = f"{crops} crops in one batch; at most {MAX_CROPS} are embedded for one request"
        raise ApiError(message, status=422, code="invalid", field="searches")
    snapshot, folders = engine.snapshot(), sees_folders(request)
    results = await asyncio.gather(*(_search(engine, snapshot, one, folders=folders) for one in body.searches))
    if sum(len(found["hits"]) for found in results) > DESCRIBED_AT_ONCE:
        return await engine.run(send_json, {"results": results}, folders=folders)
    return send_json({"results": results}, folders=folders)


@router.post(
    "/search/image",
    response_model=SearchResponse,
    responses=describe_errors(*BODY_ERRORS),
    openapi_extra=IMAGE_BODY,
    summary="Search by a photo, which is the body",
)
async def search_by_image(request: Request, parameters: Annotated[ImageSearch, Query()]) -> Response:
    """The members most like the photo, which is not kept."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    folders = sees_folders(request)
    where = read_condition(parameters.where, parameters.text, folders=folders)  # before the photo is embedded
    name = printable_path(parameters.name)
    vector = await engine.embed(snapshot, await request.body(), name=name)
    include = read_includes(parameters.include)
    query = SearchQuery(
        parts=(QueryPart(vector=vector),),
        k=parameters.k,
        offset=parameters.offset,
        min_score=parameters.min_score,
        where=where,
        group_copies=parameters.group_copies,
        describe=needs_row(include),
    )
    return send_json(
        await describe_search(engine, snapshot, query, include=include, folders=folders), folders=folders
    )


@router.post(
    "/photos",
    status_code=201,
    response_model=PhotoAnswer,
    responses=describe_errors(*BODY_ERRORS),
    openapi_extra=IMAGE_BODY,
    summary="Keep a photo for a while, to search with it or parts of it",
)
async def keep_photo(request: Request, parameters: Annotated[PhotoName, Query()]) -> Response:
    """The token of a photo, which is the body; it is kept in memory among the most recently used ones."""
    engine: Engine = request.app.state.engine
    photo = await engine.keep_photo(await request.body(), name=parameters.name)
    answer = {"photo": photo.token, "name": photo.name, "width": photo.width, "height": photo.height}
    return send_json(answer, status=201)


@router.get(
    "/photos/{token}/picture",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}, "description": "re-encoded pixels"}, **describe_errors(404)},
    summary="A photo that is kept",
)
async def send_photo(request: Request, token: PhotoToken, _: Annotated[NoParameters, Query()]) -> Response:
    """The photo as JPEG of at most about 1024 pixels a side."""
    engine: Engine = request.app.state.engine
    photo = engine.photo(token)
    return Response(photo.picture, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    responses=describe_errors(*BODY_ERRORS),
    openapi_extra=IMAGE_BODY,
    summary="The vector of a photo, which is the body",
)
async def embed(request: Request, parameters: Annotated[PhotoName, Query()]) -> Response:
    """The unit vector that the gallery's model gives for a photo."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    name = printable_path(parameters.name)
    vector = await engine.embed(snapshot, await request.body(), name=name)
    answer = {
        "vector": vector,
        "embedding_dim": len(vector),
        "model_sha256": snapshot.gallery.manifest.model_sha256,
    }
    return send_json(answer)


async def _search(engine: Engine, snapshot: Snapshot, body: SearchRequest, *, folders: bool) -> dict[str, Any]:
    query = SearchQuery(
        parts=tuple(map(_read_part, body.queries)),
        k=body.k,
        offset=body.offset,
        min_score=body.min_score,
        where=read_condition(body.where, body.text, folders=folders),
        exclude_ids=frozenset(body.exclude_ids),
        group_copies=body.group_copies,
        describe=needs_row(body.include),
    )
    return await describe_search(engine, snapshot, query, include=body.include, folders=folders)


def _read_part(part: MemberQuery | PhotoQuery | VectorQuery) -> QueryPart:
    if isinstance(part, VectorQuery):
        return QueryPart(vector=np.array(part.vector, dtype=np.float32), weight=part.weight)
    crop = None if part.crop is None else Crop(part.crop.x, part.crop.y, part.crop.width, part.crop.height)
    if isinstance(part, PhotoQuery):
        return QueryPart(photo=part.photo, weight=part.weight, crop=crop)
    return QueryPart(image_id=part.image_id, weight=part.weight, crop=crop)
