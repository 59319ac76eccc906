"""Decisions that somebody makes about what was seen, and takes back, as the API has them."""

from __future__ import annotations

from typing import Any

from index.labels.decisions import LabelDecision
from index.text import printable_path
from retrieval_app.api.errors import ApiError
from retrieval_app.api.review.duplicate_list import find_group
from retrieval_app.api.schemas import GroupDecision, LabelChange, LabelChoice, LabelDecisions, Undo
from retrieval_app.review.duplicate_decisions import DuplicateDecision
from retrieval_app.review.places import show_path
from retrieval_app.review.review_store import About, ReviewStore
from retrieval_app.review.subjects import Subject, find_decided_ids, find_subjects
from retrieval_app.serving.live_gallery import Snapshot


def decide_labels(
    snapshot: Snapshot, review: ReviewStore, body: LabelDecisions, *, by: str | None = None
) -> dict[str, Any]:
    """Keep decisions about labels as one step, of somebody of a name, and tell of it.

    Raises:
        ApiError: an image has another label than was seen.
        InputError: a decision that says nothing clear, or an image that is unknown.
        ReviewError: they cannot be kept.
    """
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
    """Undo a step, and tell what can be undone now: both at once, or a refusal of the second would hide the first.

    Raises:
        DecidedSinceError: another decision was made since the step asked for.
        ReviewError: it cannot be undone.
    """
    step = review.undo(body.step, about=about)
    return {"undone": [] if step is None else list(step.image_ids), "can_undo": review.can_undo(about)}


def list_label_decisions(snapshot: Snapshot, review: ReviewStore, *, folders: bool) -> dict[str, Any]:
    """The document of /v1/labels/decisions; with the folders of the machine, or without.

    Raises:
        ReviewError: they cannot be read.
    """
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
    """Keep a decision about a group of duplicates, of somebody of a name, and tell of it.

    Raises:
        ApiError: there is no such group, or the groups are not known yet.
        InputError, ReviewError: as `decide_labels`.
    """
    duplicates = snapshot.insights.duplicates
    if duplicates.value is None:
        raise ApiError("the duplicates are still being looked for; ask /v1/duplicates first", status=409)
    group = find_group(snapshot.gallery, duplicates.value, body.group)
    if group is None:
        message = "no such group; the gallery may have changed: ask for the list again"
        raise ApiError(message, status=404, field="group")
    subjects = find_subjects(snapshot.gallery, [image.id for image in group.images])
    images = tuple(subjects[image.id].as_group_image() for image in group.images)
    step = review.decide_duplicates([DuplicateDecision(images, body.decision, tuple(body.keep))], by=by)
    return {"decided": step.count, "step": step.number, "can_undo": review.can_undo("duplicates")}
