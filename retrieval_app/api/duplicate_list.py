"""Groups of near-duplicates as a working list: which are open, which decided, page by page."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from index.gallery import Gallery
from index.images import valid_text
from retrieval_app.api.schemas import GroupPage
from retrieval_app.insights.copies import CopyGroup, CopyGroups
from retrieval_app.review.decisions import DuplicateDecision, name_group
from retrieval_app.review.store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot

_groups_of: WeakKeyDictionary[Gallery, dict[str, CopyGroup]] = WeakKeyDictionary()


def list_groups(snapshot: Snapshot, copies: CopyGroups, review: ReviewStore, *, page: GroupPage) -> dict[str, Any]:
    """The document of /v1/duplicates."""
    groups, decisions = _name_groups(snapshot.gallery, copies), review.duplicate_decisions()
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
        "can_undo": review.can_undo_duplicates(),
    }


def find_group(gallery: Gallery, copies: CopyGroups, name: str) -> CopyGroup | None:
    """The group of a name; None where the gallery has none."""
    return _name_groups(gallery, copies).get(name)


def describe_copies(copies: CopyGroups | None, image_id: int) -> list[dict[str, Any]]:
    """The other images of an image's group as `CopyEntry` has them; none before they are looked for."""
    group = None if copies is None else copies.find(image_id)
    if group is None:
        return []
    keeper = group.images[0]
    asked = next(image for image in group.images if image.id == image_id)
    # Similarities are to the keeper; of two others none is known.
    similarities = {image.id: image.similarity if asked is keeper else None for image in group.images}
    similarities[keeper.id] = asked.similarity
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


def _describe_group(name: str, group: CopyGroup, decision: DuplicateDecision | None) -> dict[str, Any]:
    decided = None if decision is None else {"decision": decision.decision, "keep": _find_kept(group, decision)}
    return {"group": name, **group.to_json(), "decision": decided}


def _find_kept(group: CopyGroup, decision: DuplicateDecision) -> list[int]:
    """The ids to keep; those that are not the group's any more are left out."""
    ids = {image.id for image in group.images}
    return [image_id for image_id in decision.keep if image_id in ids]


def _name_groups(gallery: Gallery, copies: CopyGroups) -> dict[str, CopyGroup]:
    """The groups by the name that decisions about them have, made once for an opened version."""
    groups = _groups_of.get(gallery)
    if groups is None:
        named = {name_group(image.sha256 for image in group.images): group for group in copies.groups}
        groups = _groups_of[gallery] = named
    return groups
