"""Labels and duplicates as working lists, decisions about them, and what comes of them as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from index.labels.decisions import LabelDecision
from index.text import printable_path
from retrieval_app.api.asking import Asked, AskedAlone, Asking, answers
from retrieval_app.api.doubt_list import Accepted, DoubtList, accept_verdicts, list_doubts
from retrieval_app.api.duplicate_list import GroupList, find_group, list_groups
from retrieval_app.api.errors import BODY_ERRORS, ApiError
from retrieval_app.api.form_files import BYTES
from retrieval_app.api.gallery_routes import COMPUTING, Failed, send_unready
from retrieval_app.api.schemas import (
    AcceptVerdicts,
    Answer,
    DoubtPage,
    DuplicatePage,
    ExportRequest,
    GroupDecision,
    LabelChange,
    LabelChoice,
    LabelDecisions,
    ListFile,
    Undo,
)
from retrieval_app.api.security.access import require_review
from retrieval_app.review.activity_log import EXPORT
from retrieval_app.review.exports import (
    OUTCOMES,
    name_attachment,
    stream_duplicate_file,
    stream_label_file,
    stream_table,
    stream_zip,
)
from retrieval_app.review.places import show_path
from retrieval_app.review.review_store import About, ReviewStore
from retrieval_app.review.subjects import DuplicateDecision, Subject, find_decided_ids, find_subjects
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.pictures import encode_picture
from retrieval_app.serving.search_engine import Engine


class Decided(Answer):
    """How many decisions were kept, and the number of their step, by which just they can be undone."""

    decided: int
    step: int
    can_undo: bool


class Undone(Answer):
    """The images of the decisions that were taken back; none where there was nothing to take back."""

    undone: list[int]
    can_undo: bool


class DecidedLabel(Answer):
    """A decision that holds; `image_id` is null where the gallery does not have the image any more."""

    image_id: int | None
    path: str
    label: str | None
    decision: Literal["keep", "change", "drop"]
    new_label: str | None
    decided_at: str


class DecidedLabels(Answer):
    """The decisions about labels in the order they were made."""

    decisions: list[DecidedLabel]
    can_undo: bool


def decide_labels(
    snapshot: Snapshot, review: ReviewStore, body: LabelDecisions, *, by: str | None = None
) -> dict[str, Any]:
    """Keep decisions about labels as one step, of somebody of a name, and tell of it."""
    subjects = find_subjects(snapshot.gallery, [choice.image_id for choice in body.decisions])
    chosen = [
        _decide_label(snapshot, subjects[choice.image_id], choice, place=place)
        for place, choice in enumerate(body.decisions)
    ]
    step = review.decide(chosen, by=by)
    return {"decided": step.count, "step": step.number, "can_undo": review.can_undo()}


def _decide_label(
    snapshot: Snapshot, subject: Subject, choice: LabelChange | LabelChoice, *, place: int
) -> LabelDecision:
    """The decision of a choice; an image that is another one now, or has another label, is none that was seen."""
    decided = snapshot.gallery.decided.by_id.get(subject.image_id)
    labels = {
        subject.label,
        subject.label if decided is None else decided.label,
    }  # lists show the one or the other
    if "label_seen" in choice.model_fields_set and choice.label_seen not in labels:
        now = "no label" if subject.label is None else f"the label {printable_path(subject.label)}"
        message = f"image {subject.image_id} has {now} now, another one than was seen; load it again"
        raise ApiError(message, status=409, field=f"decisions.{place}.label_seen")
    return subject.decide(choice.decision, new_label=choice.label)


def take_back(review: ReviewStore, body: Undo, *, about: About) -> dict[str, Any]:
    """Undo a step, and tell what can be undone now: both at once, or a refusal of the second would hide the first."""
    step = review.undo(body.step, about=about)
    return {"undone": [] if step is None else list(step.image_ids), "can_undo": review.can_undo(about)}


def list_label_decisions(snapshot: Snapshot, review: ReviewStore, *, folders: bool) -> dict[str, Any]:
    """The document of /v1/labels/decisions; with the folders of the machine, or without."""
    decisions = review.label_decisions()
    ids = find_decided_ids(snapshot.gallery, decisions.values())
    listed = [
        {
            "image_id": ids.get(key),
            "path": show_path(snapshot.gallery, decision.path, folders=folders),
            "label": decision.label,
            "decision": decision.decision,
            "new_label": decision.new_label,
            "decided_at": decision.decided_at,
        }
        for key, decision in decisions.items()
    ]
    return {"decisions": listed, "can_undo": review.can_undo()}


def decide_group(
    snapshot: Snapshot, review: ReviewStore, body: GroupDecision, *, by: str | None = None
) -> dict[str, Any]:
    """Keep a decision about a group of duplicates, of somebody of a name, and tell of it."""
    duplicates = snapshot.insights.duplicates
    if duplicates.value is None:
        raise ApiError("the duplicates are still being looked for; ask /v1/duplicates first", status=409)
    group = find_group(snapshot.gallery, duplicates.value, body.group)
    if group is None:
        message = "no such group; the gallery may have changed: ask for the list again"
        raise ApiError(message, status=404, field="group")
    subjects = find_subjects(snapshot.gallery, [image.id for image in group.images])
    images = tuple(subjects[image.id] for image in group.images)
    step = review.decide_duplicates([DuplicateDecision(images, body.decision, tuple(body.keep))], by=by)
    return {"decided": step.count, "step": step.number, "can_undo": review.can_undo("duplicates")}


_BYTES_IN_MEMORY = 4 * 1024 * 1024  # of a table; more lies in a temporary file
_CHUNK_BYTES = 64 * 1024


async def send_table(
    engine: Engine, blocks: Iterable[bytes], *, name: str, describe: Callable[[], Mapping[str, str]] = dict
) -> Response:
    """A CSV, made whole before it is sent: by one thread, as a reader of the catalogue belongs to its own.

    `name`, and the headers that `describe` gives once it is made, must be ours: nobody's text belongs in a header.
    """
    file, size = await engine.run(_write_all, blocks)
    headers = {**_attach(name), **describe(), "Content-Length": str(size)}
    return StreamingResponse(_read_all(file), media_type="text/csv", headers=headers)


def send_zip(engine: Engine, blocks: Iterator[bytes], *, name: str) -> Response:
    """A ZIP, of which each block is made when the one before is sent; any thread may make it.

    `name` must be ours.
    """
    return StreamingResponse(_pull(engine, blocks), media_type="application/zip", headers=_attach(name))


def _attach(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _write_all(blocks: Iterable[bytes]) -> tuple[SpooledTemporaryFile[bytes], int]:
    """A file of all blocks, at its start, and its size."""
    file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=_BYTES_IN_MEMORY)  # noqa: SIM115 - closed when it is sent
    try:
        for block in blocks:
            file.write(block)
    except BaseException:
        file.close()
        raise
    size = file.tell()
    file.seek(0)
    return file, size


def _read_all(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


async def _pull(engine: Engine, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (block := await engine.run(next, blocks, None)) is not None:
        yield block


router = APIRouter(prefix="/v1", tags=["review"])
_MAY_DECIDE: dict[str, Any] = {"dependencies": [Depends(require_review)]}
_DECIDES = {**_MAY_DECIDE, **answers(Decided, 404, 409, *BODY_ERRORS)}
_UNDOES = {**_MAY_DECIDE, **answers(Undone, 409, *BODY_ERRORS)}
_LAST_STEP = Undo()
_TABLE = {"text/csv": {"schema": {"type": "string"}}}
_ARCHIVE = {"application/zip": BYTES}
_MOST_LOGGED = 100  # ids of an export
_COUNTED = "x-labels-"  # the headers that tell how many images a label file has, and leaves out
_COUNTS = {
    f"{_COUNTED}{outcome}": {"schema": {"type": "integer"}, "description": "images"} for outcome in OUTCOMES
}
_CSV: dict[int, dict[str, Any]] = {200: {"content": _TABLE, "description": "a table"}}
_LABELS_CSV: dict[int, dict[str, Any]] = {200: {**_CSV[200], "headers": _COUNTS}}
_EXPORT = {200: {"content": _ARCHIVE | _TABLE, "description": "a table, or pictures and a table"}}


@router.get(
    "/labels/doubts",
    operation_id="list_doubts",
    summary="Labels that may be wrong",
    **answers(DoubtList | Failed, also=COMPUTING),
)
async def show_doubts(asked: Asked, page: Annotated[DoubtPage, Query()]) -> Any:
    """The most doubtful first, with why, what the label may be instead, and what was decided."""
    doubts = asked.snapshot.insights.doubts
    if doubts.value is None:
        return send_unready(asked, doubts)
    return await asked.read(list_doubts, asked.snapshot, asked.review, page=page, names=asked.folders)


@router.get(
    "/duplicates",
    operation_id="list_duplicates",
    summary="Images that look alike",
    **answers(GroupList | Failed, also=COMPUTING),
)
async def show_duplicates(asked: Asked, page: Annotated[DuplicatePage, Query()]) -> Any:
    """Groups of near-duplicates, those that the gallery set aside included, and what was decided."""
    duplicates = asked.snapshot.insights.duplicates
    if duplicates.value is None:
        return send_unready(asked, duplicates)
    return await asked.read(list_groups, asked.snapshot, duplicates.value, asked.review, page=page)


@router.post("/labels/decisions", operation_id="decide_labels", summary="Decide about labels", **_DECIDES)
async def keep_label_decisions(asked: AskedAlone, body: LabelDecisions) -> Any:
    """All decisions of a request are kept as one step, which one undo takes back.

    409 where one brings a label that was seen, and the image has another one now: none is kept then.
    """
    decide = asked.logging("decide-labels", decide_labels, tell=partial(_log_labels, body))
    return await asked.read(decide, asked.snapshot, asked.review, body, by=asked.who)


@router.post(
    "/labels/accept",
    operation_id="accept_verdicts",
    summary="Accept the verdicts on labels that are likely enough wrong",
    **{**_MAY_DECIDE, **answers(Accepted, 409, *BODY_ERRORS)},
)
async def accept_label_verdicts(asked: AskedAlone, body: AcceptVerdicts) -> Any:
    """Without a digest it only counts; with that answer's digest it decides.

    All of it is one step, which one undo takes back; at most 10,000 decisions, those likeliest wrong. Labels below the
    threshold, of rare labels and with a decision stay as they are. An image with near-duplicates is dropped only where
    one of them stays and all that stay have other labels. 409 where other decisions would be made than were counted:
    nothing is decided then.
    """
    if body.digest is None:
        return await asked.read(accept_verdicts, asked.snapshot, asked.review, body)
    accept = asked.logging("accept-verdicts", accept_verdicts, tell=partial(_log_accepted, body))
    return await asked.read(accept, asked.snapshot, asked.review, body, by=asked.who)


@router.get(
    "/labels/decisions",
    operation_id="list_label_decisions",
    summary="What was decided about labels",
    **answers(DecidedLabels, 409),
)
async def show_label_decisions(asked: AskedAlone) -> Any:
    """The decisions that hold, in the order they were made."""
    return await asked.read(list_label_decisions, asked.snapshot, asked.review, folders=asked.folders)


@router.post(
    "/labels/undo",
    operation_id="undo_label_decisions",
    summary="Take the last decisions about labels back",
    **_UNDOES,
)
async def undo_labels(asked: AskedAlone, body: Undo = _LAST_STEP) -> Any:
    """The images whose decisions were taken back: the last step's, or none where the step asked for was undone before.

    409 where another decision was made since the step asked for.
    """
    undo = asked.logging("undo-labels", take_back, tell=_log_undone)
    return await asked.read(undo, asked.review, body, about="labels")


@router.get(
    "/labels/file",
    operation_id="get_label_file",
    summary="The labels with the decisions applied",
    **answers(None, 409, also=_LABELS_CSV),
)
async def send_label_file(asked: Asked, parameters: Annotated[ListFile, Query()]) -> Response:
    """A CSV of path and label, as `retrieval train` and `retrieval index build --labels` read it.

    Headers count the images by what became of them: `kept` and `changed` are rows; the others are left out, `dropped`
    by a decision, `unlabelled`, `in-archives`, of which training reads none, and `unnamable` in UTF-8. Paths are
    absolute, but for strangers, who get those within the sources, and where these are asked for: saved in the folder of
    the images, the file then goes with it to another machine.
    """
    folders = _choose_folders(asked, parameters)
    read = asked.logging(EXPORT, asked.review.label_decisions, tell=lambda _: {"file": "labels.csv"})
    decisions, counts = await asked.engine.run(read), Counter[str]()
    blocks = stream_label_file(asked.snapshot.gallery, decisions, counts=counts, folders=folders)
    return await send_table(asked.engine, blocks, name="labels.csv", describe=partial(_tell_counts, counts))


@router.post(
    "/duplicates/decisions",
    operation_id="decide_duplicates",
    summary="Decide about a group of duplicates",
    **_DECIDES,
)
async def keep_duplicate_decision(asked: AskedAlone, body: GroupDecision) -> Any:
    """Whether its images are duplicates, and which of them stay."""
    decide = asked.logging("decide-duplicates", decide_group, tell=partial(_log_group, asked.snapshot, body))
    return await asked.read(decide, asked.snapshot, asked.review, body, by=asked.who)


@router.post(
    "/duplicates/undo",
    operation_id="undo_duplicate_decisions",
    summary="Take the last decision about duplicates back",
    **_UNDOES,
)
async def undo_duplicates(asked: AskedAlone, body: Undo = _LAST_STEP) -> Any:
    """The images of the group whose decision was taken back; else as for labels."""
    undo = asked.logging("undo-duplicates", take_back, tell=_log_undone)
    return await asked.read(undo, asked.review, body, about="duplicates")


@router.get(
    "/duplicates/file",
    operation_id="get_duplicate_file",
    summary="What was decided about duplicates",
    **answers(None, 409, also=_CSV),
)
async def send_duplicate_file(asked: Asked, parameters: Annotated[ListFile, Query()]) -> Response:
    """A CSV of path, decision (keep or drop) and group; paths as in the label file."""
    folders = _choose_folders(asked, parameters)
    read = asked.logging(
        EXPORT, asked.review.duplicate_decisions, tell=lambda _: {"file": "duplicate-decisions.csv"}
    )
    decisions = await asked.engine.run(read)
    blocks = stream_duplicate_file(asked.snapshot.gallery, decisions.values(), folders=folders)
    return await send_table(asked.engine, blocks, name="duplicate-decisions.csv")


@router.post(
    "/export",
    operation_id="export_images",
    summary="Chosen images as a table, or as a ZIP of pictures",
    **answers(None, 404, *BODY_ERRORS, also=_EXPORT),
)
async def export(asked: AskedAlone, body: ExportRequest) -> Response:
    """The images in the order given; pictures are re-encoded, never the files themselves."""
    engine, gallery, folders = asked.engine, asked.snapshot.gallery, asked.folders
    name = name_attachment(gallery, f".{body.format}")
    if body.format == "csv":
        make_table = asked.logging(EXPORT, stream_table, tell=partial(_log_export, body))
        table = await engine.run(make_table, gallery, body.ids, folders=folders)
        return await send_table(engine, table, name=name)
    render = partial(encode_picture, gallery, kind="JPEG")
    make_zip = asked.logging(EXPORT, stream_zip, tell=partial(_log_export, body))
    blocks = await engine.run(make_zip, gallery, body.ids, render=render, folders=folders)
    return send_zip(engine, blocks, name=name)


def _choose_folders(asked: Asking, parameters: ListFile) -> bool:
    """Whether the paths of a file are absolute."""
    if parameters.paths == "absolute" and not asked.folders:
        raise ApiError("absolute paths are told to those only who may decide", status=403)
    return asked.folders and parameters.paths != "relative"


def _log_labels(body: LabelDecisions, done: dict[str, Any]) -> dict[str, Any]:
    decisions = [
        {
            "image": choice.image_id,
            "decision": choice.decision,
            **({} if choice.label is None else {"label": choice.label}),
        }
        for choice in body.decisions
    ]
    return {"step": done["step"], "decisions": decisions}


def _log_accepted(body: AcceptVerdicts, done: dict[str, Any]) -> dict[str, Any]:
    return {"threshold": body.threshold} | {name: done[name] for name in ("step", "changed", "dropped")}


def _log_group(snapshot: Snapshot, body: GroupDecision, done: dict[str, Any]) -> dict[str, Any]:
    groups = snapshot.insights.duplicates.value
    group = None if groups is None else find_group(snapshot.gallery, groups, body.group)
    images = [] if group is None else [image.id for image in group.images]
    return {"step": done["step"], "images": images, "decision": body.decision, "keep": list(body.keep)}


def _log_undone(done: dict[str, Any]) -> dict[str, Any]:
    return {"images": done["undone"]}


def _log_export(body: ExportRequest, _: object) -> dict[str, Any]:
    """How many images, and the first of them."""
    return {"format": body.format, "count": len(body.ids), "images": list(body.ids[:_MOST_LOGGED])}


def _tell_counts(counts: Counter[str]) -> dict[str, str]:
    return {f"{_COUNTED}{outcome}": str(counts[outcome]) for outcome in OUTCOMES}
