"""Labels and duplicates as working lists, decisions about them, and what comes of them as files."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from retrieval_app.api.answers import send_json
from retrieval_app.api.downloads import send_table, send_zip
from retrieval_app.api.errors import BODY_ERRORS, describe_errors
from retrieval_app.api.gallery.gallery_routes import COMPUTING, send_unready
from retrieval_app.api.gallery.gallery_schemas import Failed
from retrieval_app.api.review.deciding import decide_group, decide_labels, list_label_decisions, take_back
from retrieval_app.api.review.doubt_list import list_doubts
from retrieval_app.api.review.duplicate_list import list_groups
from retrieval_app.api.review.review_schemas import Decided, DecidedLabels, DoubtList, GroupList, Undone
from retrieval_app.api.schemas import (
    DoubtPage,
    ExportRequest,
    GroupDecision,
    GroupPage,
    LabelDecisions,
    NoParameters,
    Undo,
)
from retrieval_app.api.security.access import require_review, sees_folders
from retrieval_app.review.duplicate_file import stream_duplicate_file
from retrieval_app.review.gallery_labels import OUTCOMES, stream_label_file
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.selection_files import name_attachment, stream_table, stream_zip
from retrieval_app.serving.pictures import encode_picture
from retrieval_app.serving.search_engine import Engine

router = APIRouter(prefix="/v1", tags=["review"])
_MAY_DECIDE = [Depends(require_review)]
_CSV: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "a table"}
}
_COUNTED = "x-labels-"  # the headers that tell how many images a label file has, and leaves out
_LABELS_CSV: dict[int | str, dict[str, Any]] = {
    200: {
        **_CSV[200],
        "headers": {
            f"{_COUNTED}{outcome}": {"schema": {"type": "integer"}, "description": "images"}
            for outcome in OUTCOMES
        },
    }
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
        return send_unready(request, doubts)
    listed = await engine.run(list_doubts, snapshot, doubts.value, review, page=page)
    return send_json(listed, folders=sees_folders(request))


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
    duplicates = snapshot.insights.duplicates
    if duplicates.value is None:
        return send_unready(request, duplicates)
    listed = await engine.run(list_groups, snapshot, duplicates.value, review, page=page)
    return send_json(listed, folders=sees_folders(request))


@router.post(
    "/labels/decisions",
    response_model=Decided,
    responses=describe_errors(404, 409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Decide about labels",
)
async def keep_label_decisions(
    request: Request, body: LabelDecisions, _: Annotated[NoParameters, Query()]
) -> Response:
    """All decisions of a request are kept as one step, which one undo takes back.

    409 where one brings a label that was seen, and the image has another one now: none is kept then.
    """
    engine, review = _find_rooms(request)
    return send_json(await engine.run(decide_labels, engine.snapshot(), review, body))


@router.get(
    "/labels/decisions",
    response_model=DecidedLabels,
    responses=describe_errors(409),
    summary="What was decided about labels",
)
async def show_label_decisions(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """The decisions that hold, in the order they were made."""
    engine, review = _find_rooms(request)
    return send_json(
        await engine.run(list_label_decisions, engine.snapshot(), review, folders=sees_folders(request))
    )


@router.post(
    "/labels/undo",
    response_model=Undone,
    responses=describe_errors(409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Take the last decisions about labels back",
)
async def undo_labels(request: Request, _: Annotated[NoParameters, Query()], body: Undo | None = None) -> Response:
    """The images whose decisions were taken back: the last step's, or none where the step asked for was undone before.

    409 where another decision was made since the step asked for.
    """
    engine, review = _find_rooms(request)
    return send_json(await engine.run(take_back, review, body, about="labels"))


@router.get(
    "/labels/file",
    response_class=Response,
    responses={**_LABELS_CSV, **describe_errors(409)},
    summary="The labels with the decisions applied",
)
async def send_label_file(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """A CSV of path and label, as `retrieval train` and `retrieval index build --labels` read it.

    Headers count the images by what became of them: `kept` and `changed` are rows; the others are left out, `dropped`
    by a decision, `unlabelled`, `in-archives`, of which training reads none, and `unnamable` in UTF-8. Paths are
    absolute, but for strangers, who get those within the sources.
    """
    engine, review = _find_rooms(request)
    decisions, counts = await engine.run(review.label_decisions), Counter[str]()
    folders = sees_folders(request)
    blocks = stream_label_file(engine.snapshot().gallery, decisions, counts=counts, folders=folders)
    return await send_table(engine, blocks, name="labels.csv", describe=partial(_tell_counts, counts))


@router.post(
    "/duplicates/decisions",
    response_model=Decided,
    responses=describe_errors(404, 409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Decide about a group of duplicates",
)
async def keep_duplicate_decision(
    request: Request, body: GroupDecision, _: Annotated[NoParameters, Query()]
) -> Response:
    """Whether its images are duplicates, and which of them stay."""
    engine, review = _find_rooms(request)
    return send_json(await engine.run(decide_group, engine.snapshot(), review, body))


@router.post(
    "/duplicates/undo",
    response_model=Undone,
    responses=describe_errors(409, *BODY_ERRORS),
    dependencies=_MAY_DECIDE,
    summary="Take the last decision about duplicates back",
)
async def undo_duplicates(
    request: Request, _: Annotated[NoParameters, Query()], body: Undo | None = None
) -> Response:
    """The images of the group whose decision was taken back; else as for labels."""
    engine, review = _find_rooms(request)
    return send_json(await engine.run(take_back, review, body, about="duplicates"))


@router.get(
    "/duplicates/file",
    response_class=Response,
    responses={**_CSV, **describe_errors(409)},
    summary="What was decided about duplicates",
)
async def send_duplicate_file(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """A CSV of path, decision (keep or drop) and group; strangers get no folders of the machine."""
    engine, review = _find_rooms(request)
    decisions = await engine.run(review.duplicate_decisions)
    folders = sees_folders(request)
    blocks = stream_duplicate_file(engine.snapshot().gallery, decisions.values(), folders=folders)
    return await send_table(engine, blocks, name="duplicate-decisions.csv")


@router.post(
    "/export",
    response_class=Response,
    responses={**_EXPORT, **describe_errors(404, *BODY_ERRORS)},
    summary="Chosen images as a table, or as a ZIP of pictures",
)
async def export(request: Request, body: ExportRequest, _: Annotated[NoParameters, Query()]) -> Response:
    """The images in the order given; pictures are re-encoded, never the files themselves."""
    engine: Engine = request.app.state.engine
    gallery = engine.snapshot().gallery
    name = name_attachment(gallery, f".{body.format}")
    folders = sees_folders(request)
    if body.format == "csv":
        table = await engine.run(stream_table, gallery, body.ids, folders=folders)
        return await send_table(engine, table, name=name)
    render = partial(encode_picture, gallery, kind="JPEG")
    blocks = await engine.run(stream_zip, gallery, body.ids, render=render, folders=folders)
    return send_zip(engine, blocks, name=name)


def _find_rooms(request: Request) -> tuple[Engine, ReviewStore]:
    return request.app.state.engine, request.app.state.review


def _tell_counts(counts: Counter[str]) -> dict[str, str]:
    return {f"{_COUNTED}{outcome}": str(counts[outcome]) for outcome in OUTCOMES}
