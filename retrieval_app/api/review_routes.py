"""Review routes: lists of label issues and near-duplicates, decisions about them, and exports."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Response
from fastapi.responses import StreamingResponse

from index.gallery.gallery import Gallery
from index.labels.decisions import MAX_UNREVIEWED_P_RIGHT, ImageRef, LabelDecision, match_images
from index.labels.steps import About, Step
from index.text import printable_path, valid_text
from retrieval_app.api.errors import BODY_ERRORS, ApiError
from retrieval_app.api.form_files import BYTES
from retrieval_app.api.gallery_routes import COMPUTING, Failed, send_unready
from retrieval_app.api.issue_list import (
    Accepted,
    LabelDecisionEntry,
    LabelIssueList,
    apply_verdicts,
    describe_decision,
    page_issues,
)
from retrieval_app.api.request_context import Context, RequestContext, make_router, responses
from retrieval_app.api.schemas import (
    AcceptVerdicts,
    Answer,
    ExportRequest,
    LabelChoice,
    LabelDecisions,
    LabelIssuePage,
    Undo,
)
from retrieval_app.api.security.access import require_review
from retrieval_app.review.activity_log import EXPORT
from retrieval_app.review.exports import OUTCOMES, encode_table, name_attachment, stream_label_file, stream_zip
from retrieval_app.review.places import shorten_path
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_by_contents, find_decided_ids, find_subjects
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import encode_image
from retrieval_app.serving.search_engine import Engine

router = make_router("review")
MAY_DECIDE: dict[str, Any] = {"dependencies": [Depends(require_review)]}
LAST_STEP = Undo()
_TABLE = {"text/csv": {"schema": {"type": "string"}}}
_ARCHIVE = {"application/zip": BYTES}
_MOST_LOGGED = 100  # ids of an export
_COUNTED = "x-labels-"  # the headers that tell how many images a label file has, and leaves out
_COUNTS = {f"{_COUNTED}{outcome}": {"schema": {"type": "integer"}, "description": "images"} for outcome in OUTCOMES}
CSV: dict[int, dict[str, Any]] = {200: {"content": _TABLE, "description": "a table"}}
_LABELS_CSV: dict[int, dict[str, Any]] = {200: {**CSV[200], "headers": _COUNTS}}
_EXPORT = {200: {"content": _ARCHIVE | _TABLE, "description": "a table, or images and a table"}}
_BYTES_IN_MEMORY = 4 * 1024 * 1024  # limit of a table in memory; larger ones go to a temporary file
_CHUNK_BYTES = 64 * 1024


class Changed(Answer):
    """A step of decisions: the number of images, labels, groups or leaks that it changes, and its own, to undo it."""

    changed: int
    step: int
    can_undo: bool


class Undone(Answer):
    """The images whose decisions were undone; none where there was nothing to undo."""

    undone: list[int]
    can_undo: bool


class DecidedLabel(Answer):
    """A decision; `image_id` is null where the gallery does not have the image any more."""

    image_id: int | None
    path: str
    label: str | None
    decision: LabelDecisionEntry
    decided_at: str


class DecidedLabels(Answer):
    """Label decisions in the order they were made."""

    decisions: list[DecidedLabel]
    can_undo: bool


DECIDES = {**MAY_DECIDE, **responses(Changed, 404, 409, *BODY_ERRORS)}
UNDOES = {**MAY_DECIDE, **responses(Undone, 409, *BODY_ERRORS)}

Log = Callable[..., object]
"""Adds a line to the activity log; see `RequestContext.log`."""


def keep_label_decisions(
    snapshot: Snapshot,
    review: ReviewStore,
    body: LabelDecisions,
    *,
    log: Log,
    by: str | None = None,
    is_agent: bool = False,
) -> dict[str, Any]:
    """Store label decisions as one step made by `by`; the response. Those of an agent do not count as reviewed."""
    subjects = find_subjects(snapshot.gallery, [choice.image_id for choice in body.decisions])
    chosen = [
        _decide_label(snapshot, subjects[choice.image_id], choice, position=position)
        for position, choice in enumerate(body.decisions)
    ]
    if is_agent:
        chosen = [replace(one, source="agent", p_right=MAX_UNREVIEWED_P_RIGHT) for one in chosen]
    step = review.decide(chosen, by=by)
    lines = [
        {"image": one.image_id, "decision": one.decision, **({} if one.label is None else {"label": one.label})}
        for one in body.decisions
    ]
    log("decide-labels", step=step.number, decisions=lines)
    return {"changed": len(step.decisions), "step": step.number, "can_undo": review.can_undo()}


def _decide_label(snapshot: Snapshot, subject: ImageRef, choice: LabelChoice, *, position: int) -> LabelDecision:
    """The decision of a choice; refused where the image has another label than was seen."""
    decided = snapshot.gallery.decided.by_id.get(subject.image_id)
    labels = (subject.label, subject.label if decided is None else decided.label)  # lists show one of them
    if "label_seen" in choice.model_fields_set and choice.label_seen not in labels:
        now = "no label" if subject.label is None else f"the label {printable_path(subject.label)}"
        message = f"nothing was decided: image {subject.image_id} has {now} now; look at it again"
        raise ApiError(message, status=409, field=f"decisions.{position}.label_seen")
    return subject.decide(choice.decision, new_label=choice.label)


def take_back(context: RequestContext, body: Undo, *, about: About) -> dict[str, Any]:
    """Undo a step, and say whether more can be undone: together, or a refusal of the second would hide the first."""
    step = context.review.undo(body.step, about=about)
    undone = [] if step is None else _find_decided(context.snapshot.gallery, step)
    context.log(f"undo-{about}", images=undone)
    return {"undone": undone, "can_undo": context.review.can_undo(about)}


def _find_decided(gallery: Gallery, step: Step) -> list[int]:
    """The present ids of a step's images: a restored step may be from a gallery with other ids."""
    ids = set(find_decided_ids(gallery, step.decided_labels).values())
    if step.marks:
        with gallery.without_decisions.catalog() as catalog:
            ids.update(number for number, _, _ in catalog.find_contents({mark.sha256 for mark in step.marks}))
    for group in step.duplicates:
        here = find_by_contents(gallery, {image.sha256 for image in group.images})
        ids.update(image.image_id for image in match_images(group.images, here))
    return sorted(ids)


def _list_decisions(snapshot: Snapshot, review: ReviewStore, *, folders: bool) -> dict[str, Any]:
    decisions = review.label_decisions()
    ids = find_decided_ids(snapshot.gallery, decisions.values())
    listed = [
        {
            "image_id": ids.get(key),
            "path": valid_text(decision.path if folders else shorten_path(snapshot.gallery, decision.path)),
            "label": decision.label,
            "decision": describe_decision(decision, names=folders),
            "decided_at": decision.decided_at,
        }
        for key, decision in decisions.items()
    ]
    return {"decisions": listed, "can_undo": review.can_undo()}


async def send_table(
    engine: Engine, blocks: Iterable[bytes], *, name: str, counts: Mapping[str, int] | None = None
) -> Response:
    """A CSV, written whole by one thread, to which the reader of a catalogue belongs; `counts` are complete then."""
    file, size = await engine.run(_write_all, blocks)
    found = {f"{_COUNTED}{outcome}": str(counts[outcome]) for outcome in OUTCOMES} if counts is not None else {}
    return StreamingResponse(
        _read_all(file), media_type="text/csv", headers={**_attach(name), **found, "Content-Length": str(size)}
    )


def _attach(name: str) -> dict[str, str]:
    """The header by which a browser saves a file, whose name must not come from a visitor."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _write_all(blocks: Iterable[bytes]) -> tuple[SpooledTemporaryFile[bytes], int]:
    with ExitStack() as stack:
        file = stack.enter_context(SpooledTemporaryFile(max_size=_BYTES_IN_MEMORY))
        for block in blocks:  # `writelines` would hold all of them in memory
            file.write(block)
        size = file.tell()
        file.seek(0)
        stack.pop_all()  # `_read_all` closes it
    return file, size


def _read_all(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


@router.get("/labels/issues", **responses(LabelIssueList | Failed, also=COMPUTING))
async def list_label_issues(context: Context, page: Annotated[LabelIssuePage, Query()]) -> Any:
    """List label issues, the most probable errors first, with suggestions, nearest images and the decision."""
    issues = context.snapshot.insights.label_issues
    if issues.value is None:
        return send_unready(context, issues)
    return await context.read(page_issues, context.snapshot, context.review, page=page, names=context.folders)


@router.post("/labels/decisions", **DECIDES)
async def decide_labels(context: Context, body: LabelDecisions) -> Any:
    """Decide about labels in one step; 409, and no decision is kept, where an image has not the `label_seen` now."""
    keep = partial(keep_label_decisions, log=context.log, by=context.visitor.name)
    return await context.read(keep, context.snapshot, context.review, body)


@router.post("/labels/accept", **{**MAY_DECIDE, **responses(Accepted, 409, *BODY_ERRORS)})
async def accept_verdicts(context: Context, body: AcceptVerdicts) -> Any:
    """Accept the verdicts on label issues, so that a share of the labels that stay is right.

    Without a digest it only counts; with the digest of that response it decides in one step, or is refused by 409 where
    other decisions would be made now: at most 100,000, the most probable errors. Rare classes and decided labels stay
    as they are. An image is dropped only where one of its near-duplicates stays, and all that stay have other labels.
    """

    def accept() -> dict[str, Any]:
        done = apply_verdicts(context.snapshot, context.review, body, by=context.visitor.name)
        if body.digest is not None:
            logged = {name: done[name] for name in ("step", "changed", "set_aside", "dropped")}
            context.log("accept-verdicts", threshold=done["threshold"], **logged)
        return done

    return await context.read(accept)


@router.get("/labels/decisions", **responses(DecidedLabels, 409))
async def list_label_decisions(context: Context) -> Any:
    """List label decisions in the order they were made."""
    return await context.read(_list_decisions, context.snapshot, context.review, folders=context.folders)


@router.post("/labels/undo", **UNDOES)
async def undo_label_decisions(context: Context, body: Undo = LAST_STEP) -> Any:
    """Undo the last step of label decisions; 409 where another decision was made since."""
    return await context.read(take_back, context, body, about="labels")


@router.get("/labels/file", **responses(None, 409, also=_LABELS_CSV))
async def get_label_file(
    context: Context,
    paths: Annotated[
        Literal["absolute", "relative"] | None,
        Query(description="those of the machine, or within the sources; absolute ones where the visitor may see them"),
    ] = None,
) -> Response:
    """Download the labels with the decisions applied, for `retrieval train` and `retrieval index build --labels`.

    A CSV of path, label, the label as given and `p_right`, the probability that the label is right, if known. Headers
    count the images: rows are `kept` or `changed`, others `set-aside` or `dropped` by a decision, `unlabelled`,
    `in-archives`, which training does not read, or `unnamable` in UTF-8. Relative paths are those within the sources.
    """
    if paths == "absolute" and not context.folders:
        raise ApiError("absolute paths are for visitors who may decide: ask for relative ones", status=403)
    folders, counts = context.folders and paths != "relative", Counter[str]()

    def read() -> Iterator[bytes]:
        trust = context.review.label_probabilities()
        context.log(EXPORT, file="labels.csv")
        return stream_label_file(context.snapshot.gallery, trust, counts=counts, folders=folders)

    return await send_table(context.engine, await context.engine.run(read), name="labels.csv", counts=counts)


@router.post("/export", **responses(None, 404, *BODY_ERRORS, also=_EXPORT))
async def export_images(context: Context, body: ExportRequest) -> Response:
    """Download images in the given order as a table, or re-encoded in a ZIP with the table."""
    engine, gallery, folders = context.engine, context.snapshot.gallery, context.folders
    name = name_attachment(gallery, f".{body.format}")

    def stream() -> Iterator[bytes]:
        if body.format == "csv":
            blocks = iter([encode_table(gallery, body.ids, folders=folders)])
        else:
            render = partial(encode_image, gallery, kind="JPEG")
            blocks = stream_zip(gallery, body.ids, render=render, folders=folders)
        context.log(EXPORT, format=body.format, count=len(body.ids), images=list(body.ids[:_MOST_LOGGED]))
        return blocks

    blocks = await engine.run(stream)
    if body.format == "csv":
        return await send_table(engine, blocks, name=name)
    # Each block of a ZIP is made when the one before is sent; any thread may make it.
    return StreamingResponse(blocks, media_type="application/zip", headers=_attach(name))
