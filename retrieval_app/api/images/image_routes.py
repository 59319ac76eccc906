"""Images of the gallery: lists, details, pictures, and what their neighbours say of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from index.catalog.rows import CatalogRow
from index.errors import ImageError, InputError, UnknownImageError
from index.filters.condition import Condition
from index.gallery.gallery import Gallery
from index.sources.reading import CHANGED
from retrieval_app.api.answers import send_json
from retrieval_app.api.errors import ApiError, describe_errors, explain
from retrieval_app.api.image_schemas import ImageDetails, ImageList, ImageVector, LabelShares
from retrieval_app.api.images.image_details import describe_details
from retrieval_app.api.row_fields import describe_row
from retrieval_app.api.schemas import (
    ImageId,
    ImagePage,
    NeighbourCount,
    NoParameters,
    RandomImages,
    ThumbnailSize,
    read_includes,
)
from retrieval_app.api.search.conditions import read_condition
from retrieval_app.api.security.access import sees_folders
from retrieval_app.insights.label_shares import share_labels
from retrieval_app.review.places import strip_folders
from retrieval_app.serving.pictures import choose_side
from retrieval_app.serving.search_engine import Engine

router = APIRouter(prefix="/v1", tags=["images"])
_WEBP: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/webp": {}}, "description": "re-encoded pixels"},
    304: {"description": "the picture that the browser has is still right"},
}
_TAG = re.compile(r'(?:W/)?("[^"]*")')


@router.get("/images", response_model=ImageList, responses=describe_errors(), summary="Images, page by page")
async def list_images(request: Request, page: Annotated[ImagePage, Query()]) -> Response:
    """The images that fulfil the condition, in the order of their ids."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    folders = sees_folders(request)
    where = read_condition(page.where, page.text, folders=folders)
    read = engine.run if where is None else engine.look_up
    listed = await read(_read_page, snapshot.gallery, where, page=page, folders=folders)
    return send_json({"version": snapshot.version, **listed}, folders=folders)


@router.get(
    "/images/random", response_model=ImageList, responses=describe_errors(), summary="Some images to start from"
)
async def list_random(request: Request, parameters: Annotated[RandomImages, Query()]) -> Response:
    """Different images in random order, the same ones for the same seed."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    folders = sees_folders(request)
    images = await engine.run(_read_random, snapshot.gallery, parameters, folders=folders)
    answer = {"version": snapshot.version, "total": snapshot.gallery.count, "images": images, "next_after": None}
    return send_json(answer, folders=folders)


@router.get(
    "/images/{image_id}",
    response_model=ImageDetails,
    responses=describe_errors(404),
    summary="All that is known of an image",
)
async def show_image(request: Request, image_id: ImageId, _: Annotated[NoParameters, Query()]) -> Response:
    """An image of the gallery, or a near-duplicate that it set aside."""
    engine: Engine = request.app.state.engine
    snapshot, review, folders = engine.snapshot(), request.app.state.review, sees_folders(request)
    details = await engine.run(describe_details, snapshot, review, image_id, folders=folders)
    return send_json(details, folders=folders)


@router.get(
    "/images/{image_id}/thumbnail",
    response_class=Response,
    responses={**_WEBP, **describe_errors(404, 409)},
    summary="An image, small",
)
async def send_thumbnail(request: Request, image_id: ImageId, size: Annotated[ThumbnailSize, Query()]) -> Response:
    """A WebP whose sides are about as long as wanted, from re-encoded pixels."""
    engine: Engine = request.app.state.engine
    try:
        data = await engine.picture(engine.snapshot(), image_id, side=choose_side(size.side))
    except (InputError, ImageError) as error:
        raise _refuse_picture(error, folders=sees_folders(request)) from error
    return _send_picture(request, data)


@router.get(
    "/images/{image_id}/picture",
    response_class=Response,
    responses={**_WEBP, **describe_errors(404, 409)},
    summary="An image, large",
)
async def send_picture(request: Request, image_id: ImageId, _: Annotated[NoParameters, Query()]) -> Response:
    """A WebP of at most 2048 pixels a side, from re-encoded pixels."""
    engine: Engine = request.app.state.engine
    try:
        data = await engine.picture(engine.snapshot(), image_id)
    except (InputError, ImageError) as error:
        raise _refuse_picture(error, folders=sees_folders(request)) from error
    return _send_picture(request, data)


@router.get(
    "/images/{image_id}/labels",
    response_model=LabelShares,
    responses=describe_errors(404),
    summary="The labels of an image's neighbours",
)
async def show_labels(
    request: Request, image_id: ImageId, parameters: Annotated[NeighbourCount, Query()]
) -> Response:
    """The labels' shares among the nearest neighbours: why an image is found, or doubted."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    shares = await engine.run(share_labels, snapshot.gallery, image_id, k=parameters.k)
    return send_json({"version": snapshot.version, "id": image_id, **shares.to_json()})


@router.get(
    "/images/{image_id}/vector",
    response_model=ImageVector,
    responses=describe_errors(404),
    summary="An image's vector",
)
async def show_vector(request: Request, image_id: ImageId, _: Annotated[NoParameters, Query()]) -> Response:
    """The stored unit vector."""
    engine: Engine = request.app.state.engine
    snapshot = engine.snapshot()
    vector = await engine.run(snapshot.gallery.vector, image_id)
    return send_json({"version": snapshot.version, "id": image_id, "vector": vector})


def _read_page(gallery: Gallery, where: Condition | None, *, page: ImagePage, folders: bool) -> dict[str, Any]:
    ids = gallery.ids if where is None else gallery.matching_ids(where)
    start = int(np.searchsorted(ids, page.after, side="right"))
    wanted = ids[start : start + page.limit].tolist()
    more = start + page.limit < len(ids)
    return {
        "total": len(ids),
        "images": _describe_images(
            gallery, gallery.rows(wanted), include=read_includes(page.include), folders=folders
        ),
        "next_after": wanted[-1] if more else None,
    }


def _read_random(gallery: Gallery, parameters: RandomImages, *, folders: bool) -> list[dict[str, Any]]:
    count = min(parameters.count, gallery.count)
    chosen = np.random.default_rng(parameters.seed).choice(gallery.count, size=count, replace=False)
    rows = gallery.rows(gallery.ids[chosen].tolist())
    return _describe_images(gallery, rows, include=read_includes(parameters.include), folders=folders)


def _describe_images(
    gallery: Gallery, rows: Iterable[CatalogRow], *, include: Sequence[str], folders: bool
) -> list[dict[str, Any]]:
    return [{"id": row.id, **describe_row(gallery, row, include=include, folders=folders)} for row in rows]


def _refuse_picture(error: InputError | ImageError, *, folders: bool) -> ApiError:
    """Whatever stands between an id and its picture: there is none, or another one than was indexed."""
    if isinstance(error, ImageError) and error.reason == CHANGED:
        return ApiError(explain(error), status=409, code=CHANGED)
    code = "bad_image" if isinstance(error, ImageError) else "not_found"
    unknown = isinstance(error, UnknownImageError)
    message = explain(error) if folders else strip_folders(explain(error))
    return ApiError(message, status=404, code=code, field="image_id" if unknown else None)


def _send_picture(request: Request, data: bytes) -> Response:
    # Ids name other files after a rebuild, so a browser may keep a picture but must ask whether it still holds.
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    known = request.headers.get("if-none-match", "")
    if known.strip() == "*" or tag in _TAG.findall(known):
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="image/webp", headers=headers)
