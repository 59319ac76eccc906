"""Labels and duplicates as working lists, decisions about them, and what comes of them as files."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from index.images import valid_text
from retrieval_app.api.access import require_review
from retrieval_app.api.answers import send_json
from retrieval_app.api.doubt_list import list_doubts
from retrieval_app.api.downloads import send_table, send_zip
from retrieval_app.api.duplicate_list import find_group, list_groups
from retrieval_app.api.errors import BODY_ERRORS, ApiError, describe_errors
from retrieval_app.api.gallery_routes import COMPUTING, send_unready
from retrieval_app.api.gallery_schemas import Failed
from retrieval_app.api.review_schemas import Decided, DecidedLabels, DoubtList, GroupList, Undone
from retrieval_app.api.schemas import (
    DoubtPage,
    ExportRequest,
    GroupDecision,
    GroupPage,
    LabelDecisions,
    NoParameters,
)
from retrieval_app.review.decisions import DuplicateDecision
from retrieval_app.review.duplicate_file import stream_duplicate_file
from retrieval_app.review.label_file import stream_label_file
from retrieval_app.review.selection_files import name_attachment, stream_table, stream_zip
from retrieval_app.review.store import ReviewStore
from retrieval_app.review.subjects import find_decided_ids, find_subjects
from retrieval_app.serving.engine import Engine
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.pictures import encode_picture

router = APIRouter(prefix="/v1", tags=["review"])
_MAY_DECIDE = [Depends(require_review)]
_CSV: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "a table"}
}
_EXPORT: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/csv": {"schema": {"type": "string"}},
            "application/zip": {"schema": {"type": "string", "format": "binary"}},
        },
        "description": "a table, or pictures and a table",
    }
}


@router.get(
    "/labels/doubts",
    response_model=DoubtList | Failed,
    responses={**COMPUTING, **describe_errors()},
    summary="Labels that may be wrong",
)
async def show_doubts(request: Request, page: Annotated[DoubtPage, Query()]) -> Response:
    """The most doubtful first, with why, what the label may be instead, and what was decided."""
    engine, review = _find_rooms(request)
    snapshot = engine.snapshot()
    doubts = snapshot.insights.doubts
    if doubts.value is None:
        return send_unready(doubts)
    return send_json(await engine.run(list_doubts, snapshot, doubts.value, review, page=page))


@router.get(
    "/duplicates",
    response_model=GroupList | Failed,
    responses={**COMPUTING, **describe_errors()},
    summary="Images that look alike",
)
async def show_duplicates(request: Request, page: Annotated[GroupPage, Query()]) -> Response:
    """Groups of near-duplicates, those that the gallery set aside included, and what was decided."""
    engine, review = _find_rooms(request)
    snapshot = engine.snapshot()
    copies = snapshot.insights.copies
    if copies.value is None:
        return send_unready(copies)
    return send_json(await engine.run(list_groups, snapshot, copies.value, review, page=page))


@router.post(
    "/labels/decisions",
    response_model=Decided,
    responses=describe_errors(404, 409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Decide about labels",
)
async def decide_labels(request: Request, body: LabelDecisions, _: Annotated[NoParameters, Query()]) -> Response:
    """All decisions of a request are kept as one step, which one undo takes back."""
    engine, review = _find_rooms(request)
    return send_json(await engine.run(_decide_labels, engine.snapshot(), review, body))


@router.get(
    "/labels/decisions",
    response_model=DecidedLabels,
    responses=describe_errors(409),
    summary="What was decided about labels",
)
async def show_label_decisions(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """The decisions that hold, in the order they were made."""
    engine, review = _find_rooms(request)
    return send_json(await engine.run(_list_label_decisions, engine.snapshot(), review))


@router.post(
    "/labels/undo",
    response_model=Undone,
    responses=describe_errors(409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Take the last decisions about labels back",
)
async def undo_labels(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """The images whose decisions were taken back."""
    engine, review = _find_rooms(request)
    step = await engine.run(review.undo)
    undone = [] if step is None else list(step.image_ids)
    return send_json({"undone": undone, "can_undo": await engine.run(review.can_undo)})


@router.get(
    "/labels/file",
    response_class=Response,
    responses={**_CSV, **describe_errors(409)},
    summary="The labels with the decisions applied",
)
async def send_label_file(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """A CSV of path and label, as `retrieval train` and `retrieval index build --labels` read it."""
    engine, review = _find_rooms(request)
    decisions = await engine.run(review.label_decisions)
    blocks = stream_label_file(engine.snapshot().gallery, decisions)
    return await send_table(engine, blocks, name="labels.csv")


@router.post(
    "/duplicates/decisions",
    response_model=Decided,
    responses=describe_errors(404, 409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Decide about a group of duplicates",
)
async def decide_duplicates(
    request: Request, body: GroupDecision, _: Annotated[NoParameters, Query()]
) -> Response:
    """Whether its images are copies, and which of them stay."""
    engine, review = _find_rooms(request)
    return send_json(await engine.run(_decide_group, engine.snapshot(), review, body))


@router.post(
    "/duplicates/undo",
    response_model=Undone,
    responses=describe_errors(409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Take the last decision about duplicates back",
)
async def undo_duplicates(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """The images of the group whose decision was taken back."""
    engine, review = _find_rooms(request)
    step = await engine.run(review.undo_duplicates)
    undone = [] if step is None else list(step.image_ids)
    return send_json({"undone": undone, "can_undo": await engine.run(review.can_undo_duplicates)})


@router.get(
    "/duplicates/file",
    response_class=Response,
    responses={**_CSV, **describe_errors(409)},
    summary="What was decided about duplicates",
)
async def send_duplicate_file(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """A CSV of path, decision (keep or drop) and group."""
    engine, review = _find_rooms(request)
    decisions = await engine.run(review.duplicate_decisions)
    blocks = stream_duplicate_file(engine.snapshot().gallery, decisions.values())
    return await send_table(engine, blocks, name="duplicates.csv")


@router.post(
    "/export",
    response_class=Response,
    responses={**_EXPORT, **describe_errors(404, *BODY_ERRORS)},
    summary="Chosen images as a table, or as a ZIP of pictures",
)
async def export(request: Request, body: ExportRequest, _: Annotated[NoParameters, Query()]) -> Response:
    """The images in the order given; pictures are re-encoded, never the files themselves."""
    engine, _review = _find_rooms(request)
    gallery = engine.snapshot().gallery
    name = name_attachment(gallery, f".{body.format}")
    if body.format == "csv":
        return await send_table(engine, await engine.run(stream_table, gallery, body.ids), name=name)
    render = partial(encode_picture, gallery, kind="JPEG")
    blocks = await engine.run(stream_zip, gallery, body.ids, render=render)
    return send_zip(engine, blocks, name=name)


def _find_rooms(request: Request) -> tuple[Engine, ReviewStore]:
    return request.app.state.engine, request.app.state.review


def _decide_labels(snapshot: Snapshot, review: ReviewStore, body: LabelDecisions) -> dict[str, Any]:
    subjects = find_subjects(snapshot.gallery, [choice.image_id for choice in body.decisions])
    chosen = [
        subjects[choice.image_id].decide(choice.decision, new_label=choice.label) for choice in body.decisions
    ]
    step = review.decide(chosen)
    return {"decided": step.count, "can_undo": review.can_undo()}


def _list_label_decisions(snapshot: Snapshot, review: ReviewStore) -> dict[str, Any]:
    decisions = review.label_decisions()
    ids = find_decided_ids(snapshot.gallery, decisions.values())
    listed = [
        {
            "image_id": ids.get(key),
            "path": valid_text(decision.path),
            "label": decision.label,
            "decision": decision.decision,
            "new_label": decision.new_label,
            "decided_at": decision.decided_at,
        }
        for key, decision in decisions.items()
    ]
    return {"decisions": listed, "can_undo": review.can_undo()}


def _decide_group(snapshot: Snapshot, review: ReviewStore, body: GroupDecision) -> dict[str, Any]:
    copies = snapshot.insights.copies
    if copies.value is None:
        raise ApiError("the duplicates are still being looked for; ask /v1/duplicates first", status=409)
    group = find_group(snapshot.gallery, copies.value, body.group)
    if group is None:
        message = "no such group; the gallery may have changed: ask for the list again"
        raise ApiError(message, status=404, field="group")
    subjects = find_subjects(snapshot.gallery, [image.id for image in group.images])
    images = tuple(subjects[image.id].as_group_image() for image in group.images)
    step = review.decide_duplicates([DuplicateDecision(images, body.decision, tuple(body.keep))])
    return {"decided": step.count, "can_undo": review.can_undo_duplicates()}
