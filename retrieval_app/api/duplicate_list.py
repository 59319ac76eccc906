"""Review list of near-duplicates: groups with their decisions, page by page."""

import os
from typing import Any, Literal

from pydantic import Field

from index.gallery.gallery import Gallery
from index.labels.decisions import DuplicateDecision, Subject
from index.labels.issues import LabelIssues
from index.text import valid_text
from retrieval_app.api.issue_list import ReviewList, turn_to
from retrieval_app.api.schemas import Answer, DuplicatePage
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage, find_undropped
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot


class DuplicateImage(Answer):
    """An image of a near-duplicate group."""

    id: int
    path: str
    label: str | None
    indexed: bool = Field(description="false where the build left it out")
    size_bytes: int
    similarity: float | None = Field(description="to the first or the given image; null where it is unknown")
    same_bytes: bool | None = Field(description="whether its file equals that of this image; null for the first")


class GroupDecisionEntry(Answer):
    """Decision about a group; of duplicates those in `keep` stay."""

    decision: Literal["duplicates", "different"]
    keep: list[int]


class GroupEntry(Answer):
    """A group of near-duplicates."""

    group: str
    images: list[DuplicateImage]
    labels_differ: bool
    burst: bool = Field(description="whether some are other shots of the scene than the kept image, not copies of it")
    best: int | None = Field(
        description="the proposed image to keep: where labels differ one with the most probable label, then the "
        "largest file; null where labels differ and the label issues are not known yet"
    )
    decision: GroupDecisionEntry | None


class GroupList(ReviewList):
    """Near-duplicate groups; `total` counts those in the requested state."""

    items: list[GroupEntry]
    can_undo: bool


def page_groups(
    snapshot: Snapshot, found: DuplicateReport, review: ReviewStore, *, page: DuplicatePage
) -> dict[str, Any]:
    """A page of /v1/duplicates."""
    groups, gallery, decisions = found.by_name, snapshot.gallery, review.duplicate_decisions()
    listed = [
        name
        for name, group in groups.items()
        if page.labels_differ in (None, _labels_differ(gallery, group))
        and (name in decisions or len(find_undropped(gallery, group)) > 1)
    ]
    shown, counts = turn_to(page, listed, decisions.__contains__)
    of_labels = review.label_decisions()
    issues = snapshot.insights.update_issues(of_labels)
    return {
        "state": "ready",
        "version": snapshot.version,
        **counts,
        "items": [_describe_group(gallery, name, groups[name], decisions.get(name), issues) for name in shown],
        "decisions_used": 0 if issues is None else issues.decisions,
        "is_updating": snapshot.insights.is_updating(of_labels),
        "can_undo": review.can_undo("duplicates"),
    }


def describe_duplicates(gallery: Gallery, groups: DuplicateReport | None, image_id: int) -> list[dict[str, Any]]:
    """The other images of an image's group, as `DuplicateImage`; none before groups are computed."""
    group = None if groups is None else groups.find(image_id)
    if group is None:
        return []
    asked = next(image for image in group.images if image.id == image_id)
    # Similarities are to the kept image; of two others none is known.
    similarities = {image.id: image.similarity if asked is group.kept else None for image in group.images}
    similarities[group.kept.id] = asked.similarity
    others = (image for image in group.images if image is not asked)
    return [_describe_image(gallery, image, asked, similarities[image.id]) for image in others]


def _describe_group(
    gallery: Gallery, name: str, group: DuplicateGroup, decision: DuplicateDecision | None, issues: LabelIssues | None
) -> dict[str, Any]:
    labels_differ = _labels_differ(gallery, group)

    def wrong(image: GroupedImage) -> float:
        """Probability of a label error, where labels differ; 0.5 where it is unknown."""
        if issues is None or not labels_differ:
            return 0.0
        if (decided := gallery.decided.by_id.get(image.id)) is not None:
            return float(decided.label is None)
        if not image.indexed or image.label is None:
            return 0.5
        issue = issues.find(image.id)
        return issue.p_error if issue else 0.0

    best = min(group.images, key=lambda image: (wrong(image), -image.size_bytes))
    here = [Subject(one.id, one.sha256, None, os.path.join(one.source, one.path)) for one in group.images]
    kept = () if decision is None else decision.find_kept(here)
    return {
        "group": name,
        "images": [_describe_image(gallery, image, group.kept, image.similarity) for image in group.images],
        "labels_differ": labels_differ,
        "burst": group.is_burst(find_undropped(gallery, group)),
        "best": None if labels_differ and issues is None else best.id,
        "decision": None if decision is None else {"decision": decision.decision, "keep": list(kept)},
    }


def _describe_image(
    gallery: Gallery, image: GroupedImage, other: GroupedImage, similarity: float | None
) -> dict[str, Any]:
    return {
        "id": image.id,
        "path": valid_text(image.path),
        "label": _find_label(gallery, image),
        "indexed": image.indexed,
        "size_bytes": image.size_bytes,
        "similarity": similarity,
        "same_bytes": None if image is other else image.sha256 == other.sha256,
    }


def _labels_differ(gallery: Gallery, group: DuplicateGroup) -> bool:
    return len({_find_label(gallery, image) for image in group.images} - {None}) > 1


def _find_label(gallery: Gallery, image: GroupedImage) -> str | None:
    """The decided label, or else the given one."""
    decided = gallery.decided.by_id.get(image.id)
    return image.label if decided is None else decided.label
