"""The doubted labels as a working list: which are open, which decided, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision, LabelKey
from index.labels.doubts import Doubt, Doubts
from index.text import valid_text
from retrieval_app.api.schemas import DoubtPage, GroupPage
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot

MAX_PAIRS = 200
Item = TypeVar("Item")


def list_doubts(snapshot: Snapshot, doubts: Doubts, review: ReviewStore, *, page: DoubtPage) -> dict[str, Any]:
    """The document of /v1/labels/doubts."""
    decisions = review.label_decisions()
    keys = _find_keys(snapshot.gallery, doubts) if decisions else {}
    chosen = [
        doubt
        for doubt in doubts.items
        if (page.label is None or doubt.label == page.label)
        and (page.suggested is None or doubt.suggested == page.suggested)
    ]
    shown, counts = turn_to(page, chosen, lambda doubt: keys.get(doubt.id) in decisions)
    return {
        "state": "ready",
        "version": snapshot.version,
        **counts,
        "wrong_share": doubts.wrong_share,
        "judged": doubts.judged,
        "items": _describe_doubts(snapshot.gallery, shown, decisions),
        "pairs": [
            {"label": label, "suggested": other, "count": count}
            for label, other, count in doubts.pairs[:MAX_PAIRS]
        ],
        "can_undo": review.can_undo(),
    }


def turn_to(
    page: GroupPage, items: Sequence[Item], is_decided: Callable[[Item], bool]
) -> tuple[Sequence[Item], dict[str, int]]:
    """The items of a page of a working list, and how many there are."""
    decided = [item for item in items if is_decided(item)]
    open_ = [item for item in items if not is_decided(item)]
    listed = {"all": items, "open": open_, "decided": decided}[page.state]
    counts = {"total": len(listed), "open": len(open_), "decided": len(decided)}
    return listed[page.offset : page.offset + page.limit], counts


def describe_doubt(doubt: Doubt, row: CatalogRow, decision: LabelDecision | None) -> dict[str, Any]:
    """One doubt as the schema `DoubtEntry` has it."""
    return {**doubt.to_json(), "path": valid_text(row.path), "decision": describe_decision(decision)}


def describe_decision(decision: LabelDecision | None) -> dict[str, Any] | None:
    """A decision as the schema `LabelDecisionEntry` has it."""
    return None if decision is None else {"decision": decision.decision, "label": decision.new_label}


def _describe_doubts(
    gallery: Gallery, doubts: Sequence[Doubt], decisions: Mapping[LabelKey, LabelDecision]
) -> list[dict[str, Any]]:
    rows = gallery.rows(doubt.id for doubt in doubts)
    return [
        describe_doubt(doubt, row, decisions.get((row.sha256 or "", row.label)))
        for doubt, row in zip(doubts, rows, strict=True)
    ]


def _find_keys(gallery: Gallery, doubts: Doubts) -> dict[int, LabelKey]:
    """What decisions about the doubted images are kept by."""
    with gallery.catalog() as catalog:
        rows = catalog.rows_of(doubt.id for doubt in doubts.items)
        return {row.id: (row.sha256 or "", row.label) for row in rows}
