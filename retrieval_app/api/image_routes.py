"""Image routes: lists, details, thumbnails, labels of neighbours."""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Required

import numpy as np
from fastapi import Query, Response
from pydantic import Field
from typing_extensions import TypedDict

from index.catalog.decided_rows import DROPPED, SET_ASIDE
from index.errors import ImageError, InputError, UnknownImageError
from index.filters.condition import Condition
from index.filters.parser import parse_order, write_column
from index.gallery.gallery import Gallery
from index.measures import Measures
from index.network.remote_store import has_time
from index.sources.reading import CHANGED
from index.text import printable_path
from retrieval_app.api.duplicate_routes import DuplicateImage, describe_duplicates
from retrieval_app.api.errors import ApiError, explain
from retrieval_app.api.form_files import BYTES
from retrieval_app.api.issue_list import LabelDecisionEntry, LabelIssueEntry, describe_decision, describe_issue
from retrieval_app.api.request_context import Context, RequestContext, make_router, read_condition, responses
from retrieval_app.api.schemas import STRICT, Answer, GivenLabel, ImageId, ImagePage, ListedImage, Versioned
from retrieval_app.review.places import ROW_FIELDS, describe_row, strip_folders
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import PREVIEW_SIDE, choose_side

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
router = make_router("images")
_WEBP = {
    200: {"content": {"image/webp": BYTES}, "description": "re-encoded pixels"},
    304: {"description": "the image that the browser has is still right"},
}
_TAG = re.compile(r'(?:W/)?("[^"]*")')


class ImageEntry(TypedDict, total=False):
    """Image of a list, with the fields that `include` names."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    id: Required[int]
    label: str | None
    given_label: GivenLabel
    tags: list[str]
    path: str | None
    source: str | None
    metadata: dict[str, Any] | None
    measures: Measures | None


class ImageList(Versioned):
    """Images in the order of their ids, or at random; `total` counts all that fulfil the condition."""

    total: int
    images: list[ImageEntry]
    next_after: int | None = Field(description="`after` of the next page; null where this was the last")


class ImageDetails(ListedImage):
    """An image; duplicates and the label issue are empty until they are computed."""

    given_label: GivenLabel = None
    tags: list[str]
    source: str
    metadata: dict[str, Any]
    measures: Measures
    size_bytes: int
    modified: str | None = Field(description="ISO 8601, UTC")
    sha256: str | None
    indexed: bool = Field(description="false for a near-duplicate that the build left out")
    dropped: bool = Field(description="whether a decision about its label or its near-duplicates drops it")
    set_aside: bool = Field(description="whether it is out of training and results until a person decides")
    duplicates: list[DuplicateImage]
    label_issue: LabelIssueEntry | None
    decision: LabelDecisionEntry | None


class LabelShare(Answer):
    """A label of `count` neighbours, and their share of all that have a label."""

    label: str
    count: int
    share: float
    mean_score: float


class LabelShares(Versioned):
    """Labels of the nearest neighbours of an image, the most frequent first; `own_share` is None without a label."""

    id: int
    label: str | None
    own_share: float | None
    shares: list[LabelShare]
    neighbours: int
    unlabelled: int = Field(description="neighbours without a label, which are in no share")


def describe_details(snapshot: Snapshot, review: ReviewStore, image_id: int, *, folders: bool) -> dict[str, Any]:
    """The document of an image; with results for the whole gallery once they are computed."""
    gallery = snapshot.gallery
    with gallery.without_decisions.catalog() as catalog:
        found = [row for row in catalog.rows_of([image_id]) if row.status in ("indexed", "duplicate")]
    if not found:
        raise UnknownImageError(image_id, gallery=printable_path(gallery.name))
    given = found[0]
    row = gallery.decided.apply(given)
    decision = review.label_decisions().get((given.sha256 or "", given.label))
    issues = snapshot.insights.label_issues.value
    issue = None if issues is None else issues.find(image_id)
    return {
        "id": row.id,
        **describe_row(gallery, row, include=ROW_FIELDS, folders=folders),
        "size_bytes": row.size_bytes,
        "modified": _format_time(row.mtime_ns),
        "sha256": row.sha256,
        "indexed": given.status == "indexed",
        "dropped": row.status == DROPPED,
        "set_aside": row.status == SET_ASIDE,
        "duplicates": describe_duplicates(gallery, snapshot.insights.duplicates.value, image_id),
        "label_issue": None if issue is None else describe_issue(issue, row.path, decision, names=folders),
        "decision": describe_decision(decision, names=folders),
    }


def share_labels(gallery: Gallery, image_id: int, *, k: int) -> dict[str, Any]:
    """The labels of the k nearest members of a member, itself not counted, for `LabelShares`."""
    label = gallery.image(image_id).label
    hits = gallery.search(gallery.vector(image_id), k=k, exclude_id=image_id)
    scores: dict[str, list[float]] = {}
    for hit in hits:
        if hit.label is not None:
            scores.setdefault(hit.label, []).append(hit.score)
    labelled = sum(map(len, scores.values()))
    shares: list[dict[str, Any]] = [
        {"label": name, "count": len(found), "share": len(found) / labelled, "mean_score": sum(found) / len(found)}
        for name, found in scores.items()
    ]
    shares.sort(key=lambda one: (-one["count"], -one["mean_score"], one["label"]))
    own = None if label is None or not labelled else len(scores.get(label, ())) / labelled
    counts = {"neighbours": len(hits), "unlabelled": len(hits) - labelled}
    return {"label": label, "own_share": own, "shares": shares, **counts}


def _format_time(mtime_ns: int) -> str | None:
    if not has_time(mtime_ns):
        return None
    try:
        return (_EPOCH + timedelta(seconds=mtime_ns // 10**9)).isoformat()
    except OverflowError:  # file systems can hold times outside of any calendar
        return None


@router.get("/images", **responses(ImageList, 409))
async def list_images(context: Context, page: Annotated[ImagePage, Query()]) -> dict[str, Any]:
    """List images that fulfil the condition, in the order of their ids; or some of them at random."""
    snapshot, folders = context.snapshot, context.folders
    where = read_condition(page.where, page.text, folders=folders)
    if page.sort is not None:
        read_condition(f"{write_column(parse_order(page.sort)[0])} IS NULL", None, folders=folders)
    read = context.engine.run if where is None and page.sort is None else context.engine.look_up
    listed = await read(_read_page, snapshot.gallery, where, page=page, folders=folders)
    return {"version": snapshot.version, **listed}


@router.get("/images/{image_id}", **responses(ImageDetails, 404))
async def get_image(context: Context, image_id: ImageId) -> Any:
    """Describe an image of the gallery, or a near-duplicate that its build left out."""
    return await context.read(describe_details, context.snapshot, context.review, image_id, folders=context.folders)


@router.get("/images/{image_id}/thumbnail", **responses(None, 404, 409, also=_WEBP))
async def get_thumbnail(
    context: Context,
    image_id: ImageId,
    side: Annotated[int, Query(ge=64, le=512, description="the longer one, in pixels")] = 256,
) -> Response:
    """A thumbnail: a WebP of about the wanted size, from re-encoded pixels."""
    return await _send_thumbnail(context, image_id, side=choose_side(side))


@router.get("/images/{image_id}/preview", **responses(None, 404, 409, also=_WEBP))
async def get_preview(context: Context, image_id: ImageId) -> Response:
    """A large preview: a WebP of at most 2048 pixels a side, from re-encoded pixels."""
    return await _send_thumbnail(context, image_id, side=PREVIEW_SIDE)


@router.get("/images/{image_id}/labels", **responses(LabelShares, 404))
async def get_neighbour_labels(
    context: Context, image_id: ImageId, k: Annotated[int, Query(ge=1, le=100)] = 20
) -> dict[str, Any]:
    """The shares of labels among the nearest neighbours: why an image is found, or its label is an issue."""
    snapshot = context.snapshot
    shares = await context.engine.run(share_labels, snapshot.gallery, image_id, k=k)
    return {"version": snapshot.version, "id": image_id, **shares}


def _read_page(gallery: Gallery, where: Condition | None, *, page: ImagePage, folders: bool) -> dict[str, Any]:
    ids = gallery.ids if where is None else gallery.matching_ids(where)
    if page.sort is not None:
        with gallery.catalog(limited=True) as catalog:
            behind = catalog.sorted_ids(parse_order(page.sort), where=where, after=page.after).tolist()
        wanted, has_more = behind[: page.limit], page.limit < len(behind)
    elif page.seed is None:
        start = int(np.searchsorted(ids, page.after, side="right"))
        wanted, has_more = ids[start : start + page.limit].tolist(), start + page.limit < len(ids)
    else:
        chosen = np.random.default_rng(page.seed).choice(len(ids), size=min(page.limit, len(ids)), replace=False)
        wanted, has_more = ids[chosen].tolist(), False
    include, rows = page.include.split(","), gallery.rows(wanted)
    return {
        "total": len(ids),
        "images": [{"id": row.id, **describe_row(gallery, row, include=include, folders=folders)} for row in rows],
        "next_after": wanted[-1] if has_more else None,
    }


async def _send_thumbnail(context: RequestContext, image_id: int, *, side: int) -> Response:
    try:
        data = await context.engine.thumbnail(context.snapshot, image_id, side=side)
    except (InputError, ImageError) as error:
        if isinstance(error, ImageError) and error.reason == CHANGED:  # another image than was indexed
            raise ApiError(explain(error), status=409, code=CHANGED) from error
        code = "bad_image" if isinstance(error, ImageError) else "not_found"
        field = "image_id" if isinstance(error, UnknownImageError) else None
        message = explain(error) if context.folders else strip_folders(explain(error))
        raise ApiError(message, status=404, code=code, field=field) from error
    # Ids name other files after a rebuild, so a browser may keep an image but must ask whether it still holds.
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    known = context.request.headers.get("if-none-match", "")
    if known.strip() == "*" or tag in _TAG.findall(known):
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="image/webp", headers=headers)
