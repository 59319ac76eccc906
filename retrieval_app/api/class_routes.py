"""Class routes: the images of one class, the least typical first, and how many errors each class probably has."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import Query
from pydantic import Field

from index.arrays import normalise_rows
from index.errors import InputError
from index.filters.condition import LABEL, Compare, Constant
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision
from index.text import valid_text
from retrieval_app.api.issue_list import LabelDecisionEntry, describe_decision, find_open_issues
from retrieval_app.api.request_context import Context, make_router, responses
from retrieval_app.api.schemas import MAX_CLASS_IMAGES, Answer, FilterText, Versioned
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_decided_ids
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.searching import MAX_ID

router = make_router("review")
MOST_LEFT_OUT = 500  # most images that were left out in an answer
_SAMPLE = 2000  # images whose mean is the middle of the gallery


class LabelEntry(Answer):
    """A class: its label and the number of its images, without those that decisions leave out."""

    label: str
    images: int
    errors: float | None = Field(description="estimated wrong labels; null until the label issues are known")


class LabelList(Versioned):
    """The classes, those with the most wrong labels first, then the largest."""

    classes: list[LabelEntry]


class ClassImage(Answer):
    """An image of a class, or one with this given label that a decision leaves out."""

    id: int
    path: str
    typicality: float | None = Field(
        default=None,
        description="cosine of its vector to the mean of the class's images, both from the middle of the gallery",
    )
    p_error: float | None = Field(default=None, description="probability that the label is wrong, of an open issue")
    decision: LabelDecisionEntry | None = Field(default=None, description="of an image that is left out")


class ClassImages(Versioned):
    """A class: a page of its `total` images, the least typical first, and those that were left out, the last first."""

    label: str
    total: int
    images: list[ClassImage]
    left_out: list[ClassImage]
    can_undo: bool


@router.get("/labels/classes", **responses(LabelList))
async def list_classes(context: Context) -> Any:
    """List every label with its images, those with the most wrong labels first."""
    return await context.read(_list_classes, context.snapshot, context.review)


@router.get("/labels/class", **responses(ClassImages))
async def list_class_images(
    context: Context,
    label: FilterText,
    offset: Annotated[int, Query(ge=0, le=MAX_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_CLASS_IMAGES)] = MAX_CLASS_IMAGES,
) -> Any:
    """List the images of a class, the least typical first: those most probably do not belong to it."""
    page = slice(offset, offset + limit)
    return await context.read(_list_images, context.snapshot, context.review, label, page=page)


def _list_classes(snapshot: Snapshot, review: ReviewStore) -> dict[str, Any]:
    with snapshot.gallery.catalog() as catalog:
        counts = Counter(label for label in catalog.labels(status="indexed") if label is not None)
    found = find_open_issues(snapshot, review.label_decisions())
    errors = defaultdict[str | None, float](float)
    for issue in found or ():
        errors[issue.label] += issue.p_error
    classes: list[dict[str, Any]] = [
        {"label": label, "images": images, "errors": None if found is None else errors[label]}
        for label, images in counts.items()
    ]
    classes.sort(key=lambda one: (-(one["errors"] or 0.0), -one["images"], one["label"]))
    return {"version": snapshot.version, "classes": classes}


def _list_images(snapshot: Snapshot, review: ReviewStore, label: str, *, page: slice) -> dict[str, Any]:
    gallery, decisions = snapshot.gallery, review.label_decisions()
    try:
        ids = gallery.matching_ids(Compare(LABEL, "=", Constant("text", label)))
    except InputError:  # no image has the label any more
        ids = gallery.ids[:0]
    seen = gallery.for_label_errors()
    middle = seen.vectors(gallery.ids[:: max(1, len(gallery.ids) // _SAMPLE)]).mean(axis=0)
    vectors = normalise_rows(seen.vectors(ids) - middle)
    mean = vectors.sum(axis=0)
    typicality = vectors @ (mean / max(float(np.linalg.norm(mean)), 1e-12))
    order = np.argsort(typicality, kind="stable")[page]
    p_errors = {issue.id: issue.p_error for issue in find_open_issues(snapshot, decisions) or ()}
    images = [
        {"id": row.id, "path": valid_text(row.path), "typicality": cosine, "p_error": p_errors.get(row.id)}
        for row, cosine in zip(gallery.rows(ids[order].tolist()), typicality[order].tolist(), strict=True)
    ]
    left_out = [one for one in decisions.values() if one.label == label and one.label_after is None]
    return {
        "version": snapshot.version,
        "label": label,
        "total": len(ids),
        "images": images,
        "left_out": _describe_left_out(gallery, left_out[: -MOST_LEFT_OUT - 1 : -1]),
        "can_undo": review.can_undo(),
    }


def _describe_left_out(gallery: Gallery, decisions: Sequence[LabelDecision]) -> list[dict[str, Any]]:
    ids = find_decided_ids(gallery, decisions)
    with gallery.without_decisions.catalog() as catalog:
        paths = {row.id: valid_text(row.path) for row in catalog.rows_of(ids.values())}
    return [
        {"id": ids[one.key], "path": paths[ids[one.key]], "decision": describe_decision(one)}
        for one in decisions
        if one.key in ids
    ]
