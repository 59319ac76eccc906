"""The doubted labels as a working list: which are open, which decided, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision, LabelKey
from index.labels.doubts import Doubt, Doubts
from index.text import valid_text
from retrieval_app.api.errors import ApiError
from retrieval_app.api.schemas import DoubtPage, GroupPage
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_decided_ids
from retrieval_app.serving.live_gallery import Snapshot

MAX_PAIRS = 200
NEXT = 50  # doubted labels, of which it is said how many are probably wrong
Item = TypeVar("Item")


def list_doubts(snapshot: Snapshot, review: ReviewStore, *, page: DoubtPage, names: bool) -> dict[str, Any]:
    """The document of /v1/labels/doubts, once they are there; what was decided meanwhile is learnt from.

    With the names of those who decided, or without.
    """
    decisions = review.label_decisions()
    learnt = snapshot.insights.learn(decisions, find_ids=lambda: _find_decided(snapshot, decisions))
    if learnt is None:
        raise ApiError("the labels are still being looked at; ask again", status=409)
    doubts = learnt.doubts
    keys = _find_keys(snapshot.gallery, doubts) if decisions else {}
    chosen = [
        doubt
        for doubt in doubts.items
        if (page.label is None or doubt.label == page.label)
        and (page.suggested is None or doubt.suggested == page.suggested)
        and (page.kind is None or doubt.kind == page.kind)
    ]
    shown, counts = turn_to(page, chosen, lambda doubt: keys.get(doubt.id) in decisions)
    return {
        "state": "ready",
        "version": snapshot.version,
        **counts,
        "wrong_share": doubts.wrong_share,
        "is_lower_bound": doubts.is_lower_bound,
        "judged": doubts.judged,
        "items": _describe_doubts(snapshot.gallery, shown, decisions),
        "pairs": [
            {"label": label, "suggested": other, "count": count}
            for label, other, count in doubts.pairs[:MAX_PAIRS]
        ],
        "left": _reckon_left([d.wrong for d in chosen if keys.get(d.id) not in decisions]),
        "kinds": doubts.count_kinds(),
        "mixed": [{"labels": [one, two], "images": images} for one, two, images in doubts.mixed[:MAX_PAIRS]],
        "agreement": [asdict(one) for one in review.agreement()] if names else [],
        "learnt": learnt.decisions,
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


def _reckon_left(chances: Sequence[float]) -> dict[str, float]:
    """How many wrong labels those that are open hold, and the next ones, by their chances."""
    return {"wrong": sum(chances), "in_next": sum(chances[:NEXT]), "next": min(NEXT, len(chances))}


def _describe_doubts(
    gallery: Gallery, doubts: Sequence[Doubt], decisions: Mapping[LabelKey, LabelDecision]
) -> list[dict[str, Any]]:
    rows = gallery.rows(doubt.id for doubt in doubts)
    return [
        describe_doubt(doubt, row, decisions.get((row.sha256 or "", row.given_label)))
        for doubt, row in zip(doubts, rows, strict=True)
    ]


def _find_decided(snapshot: Snapshot, decisions: Mapping[LabelKey, LabelDecision]) -> dict[int, LabelKey]:
    """The images that decisions are about, of several that are one file all that are doubted."""
    found = {number: key for key, number in find_decided_ids(snapshot.gallery, decisions.values()).items()}
    doubts = snapshot.insights.doubts.value
    keys = {} if doubts is None else _find_keys(snapshot.gallery, doubts)
    return found | {number: key for number, key in keys.items() if key in decisions}


def _find_keys(gallery: Gallery, doubts: Doubts) -> dict[int, LabelKey]:
    """What decisions about the doubted images are kept by."""
    with gallery.as_given.catalog() as catalog:
        rows = catalog.rows_of(doubt.id for doubt in doubts.items)
        return {row.id: (row.sha256 or "", row.label) for row in rows}
