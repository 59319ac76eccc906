"""Groups of near-duplicates as a working list: which are open, which decided, page by page."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from index.gallery.gallery import Gallery
from index.text import valid_text
from retrieval_app.api.schemas import GroupPage
from retrieval_app.insights.duplicate_groups import DuplicateGroups, ImageGroup
from retrieval_app.review.duplicate_decisions import DuplicateDecision, name_group
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot

_groups_of: WeakKeyDictionary[Gallery, dict[str, ImageGroup]] = WeakKeyDictionary()


def list_groups(
    snapshot: Snapshot, found: DuplicateGroups, review: ReviewStore, *, page: GroupPage
) -> dict[str, Any]:
    """The document of /v1/duplicates."""
    groups, decisions = _name_groups(snapshot.gallery, found), review.duplicate_decisions()
    decided = [name for name in groups if name in decisions]
    open_ = [name for name in groups if name not in decisions]
    listed = {"all": list(groups), "open": open_, "decided": decided}[page.state]
    shown = listed[page.offset : page.offset + page.limit]
    return {
        "state": "ready",
        "version": snapshot.version,
        "total": len(listed),
        "open": len(open_),
        "decided": len(decided),
        "items": [_describe_group(name, groups[name], decisions.get(name)) for name in shown],
        "can_undo": review.can_undo("duplicates"),
    }


def find_group(gallery: Gallery, groups: DuplicateGroups, name: str) -> ImageGroup | None:
    """The group of a name; None where the gallery has none."""
    return _name_groups(gallery, groups).get(name)


def describe_duplicates(groups: DuplicateGroups | None, image_id: int) -> list[dict[str, Any]]:
    """The other images of an image's group as `CopyEntry` has them; none before they are looked for."""
    group = None if groups is None else groups.find(image_id)
    if group is None:
        return []
    kept_image = group.images[0]
    asked = next(image for image in group.images if image.id == image_id)
    # Similarities are to the kept image; of two others none is known.
    similarities = {image.id: image.similarity if asked is kept_image else None for image in group.images}
    similarities[kept_image.id] = asked.similarity
    return [
        {
            "id": image.id,
            "path": valid_text(image.path),
            "label": image.label,
            "indexed": image.indexed,
            "same_bytes": image.sha256 == asked.sha256,
            "similarity": similarities[image.id],
        }
        for image in group.images
        if image is not asked
    ]


def _describe_group(name: str, group: ImageGroup, decision: DuplicateDecision | None) -> dict[str, Any]:
    decided = None if decision is None else {"decision": decision.decision, "keep": _find_kept(group, decision)}
    return {"group": name, **group.to_json(), "decision": decided}


def _find_kept(group: ImageGroup, decision: DuplicateDecision) -> list[int]:
    """The ids to keep; those that are not the group's any more are left out."""
    ids = {image.id for image in group.images}
    return [image_id for image_id in decision.keep if image_id in ids]


def _name_groups(gallery: Gallery, found: DuplicateGroups) -> dict[str, ImageGroup]:
    """The groups by the name that decisions about them have, made once for an opened version."""
    groups = _groups_of.get(gallery)
    if groups is None:
        named = {name_group(image.sha256 for image in group.images): group for group in found.groups}
        groups = _groups_of[gallery] = named
    return groups
