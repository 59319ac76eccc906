"""The doubted labels as a working list: which are open, which decided, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, LabelDecision, LabelKey
from index.labels.doubts import Doubt, Doubts
from index.text import valid_text
from retrieval_app.api.errors import ApiError
from retrieval_app.api.schemas import AcceptVerdicts, DoubtPage, GroupPage
from retrieval_app.insights.learning import Learnt
from retrieval_app.review.review_store import MAX_STEP_DECISIONS, ReviewStore
from retrieval_app.review.subjects import find_decided_ids, find_subjects
from retrieval_app.serving.live_gallery import Snapshot

MAX_PAIRS = 200
NEXT = 50  # doubted labels, of which it is said how many are probably wrong
Item = TypeVar("Item")


def list_doubts(snapshot: Snapshot, review: ReviewStore, *, page: DoubtPage, names: bool) -> dict[str, Any]:
    """The document of /v1/labels/doubts, once they are there; what was decided meanwhile is learnt from.

    With the names of those who decided, or without.
    """
    decisions = review.label_decisions()
    learnt = learn_doubts(snapshot, decisions)
    doubts = learnt.doubts
    keys = _find_keys(snapshot.gallery, doubts) if decisions else {}
    chosen = filter_doubts(doubts, page)
    shown, counts = turn_to(page, chosen, lambda doubt: keys.get(doubt.id) in decisions)
    chances = [doubt.wrong for doubt in chosen if keys.get(doubt.id) not in decisions]
    left = sum(chances)
    if len(chosen) == len(doubts.items):  # labels below the list's threshold count, too
        left = doubts.wrong_share * doubts.judged - sum(d.wrong for d in chosen if keys.get(d.id) in decisions)
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
        "left": {"wrong": max(left, 0.0), "in_next": sum(chances[:NEXT]), "next": min(NEXT, len(chances))},
        "kinds": doubts.count_kinds(),
        "mixed": [{"labels": [one, two], "images": images} for one, two, images in doubts.mixed[:MAX_PAIRS]],
        "agreement": [asdict(one) for one in review.agreement()] if names else [],
        "learnt": learnt.decisions,
        "can_undo": review.can_undo(),
    }


def accept_verdicts(
    snapshot: Snapshot, review: ReviewStore, body: AcceptVerdicts, *, by: str | None = None
) -> dict[str, Any]:
    """Do what the verdicts say with all labels that are likely enough wrong, as one step, or count them.

    A step has at most `MAX_STEP_DECISIONS`; of more, those that are the likeliest wrong are accepted.

    Raises:
        ApiError: the list is not there yet, or is another one than was seen.
        ReviewError: the decisions cannot be kept.
    """
    if body.version not in (None, snapshot.version):
        message = f"the gallery has another version now, {snapshot.version}; load the list again"
        raise ApiError(message, status=409, field="version")
    decisions = review.label_decisions()
    doubts = learn_doubts(snapshot, decisions).doubts
    wanted = [
        doubt
        for doubt in filter_doubts(doubts, body)
        if doubt.wrong >= body.threshold and doubt.verdict in (CHANGE, DROP)
    ]
    subjects = find_subjects(snapshot.gallery, [doubt.id for doubt in wanted])
    chosen: dict[LabelKey, tuple[Doubt, LabelDecision]] = {}  # files of the same bytes and label are one
    for doubt in wanted:
        subject = subjects[doubt.id]
        if subject.key not in decisions and len(chosen) < MAX_STEP_DECISIONS:
            new_label = doubt.suggested if doubt.verdict == CHANGE else None
            chosen.setdefault(subject.key, (doubt, subject.decide(doubt.verdict, new_label=new_label)))
    if body.count not in (None, len(chosen)):
        message = f"{len(chosen)} labels would be decided now, not {body.count}; ask for a preview again"
        raise ApiError(message, status=409, field="count")
    step = None
    if chosen and not body.preview:
        step = review.decide([decision for _, decision in chosen.values()], by=by).number
    changed = sum(decision.decision == CHANGE for _, decision in chosen.values())
    expected = sum(doubt.wrong for doubt, _ in chosen.values())
    return {
        "changed": changed,
        "dropped": len(chosen) - changed,
        "expected_wrong": expected,
        "expected_right": len(chosen) - expected,
        "step": step,
        "can_undo": review.can_undo(),
    }


def learn_doubts(snapshot: Snapshot, decisions: Mapping[LabelKey, LabelDecision]) -> Learnt:
    """The doubts as the decisions have changed them so far.

    Raises:
        ApiError: there are none yet.
    """
    learnt = snapshot.insights.learn(decisions, find_ids=lambda: _find_decided(snapshot, decisions))
    if learnt is None:
        raise ApiError("the labels are still being looked at; ask again", status=409)
    return learnt


def filter_doubts(doubts: Doubts, wanted: DoubtPage | AcceptVerdicts) -> list[Doubt]:
    """Those of a given label, a suggested label and a kind, the likeliest to be wrong first."""
    return [
        doubt
        for doubt in doubts.items
        if (wanted.label is None or doubt.label == wanted.label)
        and (wanted.suggested is None or doubt.suggested == wanted.suggested)
        and (wanted.kind is None or doubt.kind == wanted.kind)
    ]


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
