"""Label issues as a working list: which are open, which decided, page by page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from pydantic import Field

from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, LabelDecision, LabelKey, check_label
from index.labels.issues import LabelIssue, LabelIssues
from index.labels.kinds import Kind
from index.text import valid_text
from retrieval_app.api.errors import ApiError
from retrieval_app.api.schemas import AcceptVerdicts, Answer, GroupPage, LabelIssuePage, Ready
from retrieval_app.reports.duplicates_report import DuplicateGroup
from retrieval_app.review.database import DecidedSinceError
from retrieval_app.review.review_store import MAX_STEP_DECISIONS, ReviewStore
from retrieval_app.review.subjects import find_decided_ids, find_subjects
from retrieval_app.serving.live_gallery import Snapshot

MAX_PAIRS = 200
NEXT = 50  # open issues, of which the answer says how many are probably errors
Item = TypeVar("Item")
_keys_of: WeakKeyDictionary[Gallery, dict[int, LabelKey]] = WeakKeyDictionary()


class Suggestion(Answer):
    """A label that an image may have instead."""

    label: str
    confidence: float


class Neighbour(Answer):
    """A neighbour with the image's own label."""

    id: int
    score: float


class OtherNeighbour(Neighbour):
    """A neighbour with another label."""

    label: str


class LabelDecisionEntry(Answer):
    """What somebody decided about a label; `label` is the new one of a change."""

    decision: Literal["keep", "change", "drop"]
    label: str | None


class LabelIssueEntry(Answer):
    """A label that may be wrong, and why."""

    id: int
    path: str
    label: str
    suggested: str | None
    wrong: float = Field(description="how likely the label is wrong, 0 to 1")
    suggestions: list[Suggestion]
    kind: Kind = Field(
        description="of trouble: `wrong`, another label fits better; `several` labels are likely; `mixed`, its label "
        "and the suggested one are given in each other's place; `rare`, its label has fewer than five images; "
        "`unlike`, the image is unlike the others; `copies`, a duplicate has another label"
    )
    verdict: Literal["keep", "change", "drop"] = Field(
        description="what `POST /v1/labels/accept` does where the label is likely enough wrong: `change` it to "
        "`suggested`, or `drop` the image, which is unlike the others or has a near-duplicate with a more credible "
        "label; `keep` leaves it open"
    )
    agreeing: list[Neighbour]
    disagreeing: list[OtherNeighbour]
    decision: LabelDecisionEntry | None


class LabelPair(Answer):
    """How many label issues have the same label and suggestion."""

    label: str
    suggested: str
    count: int


class KindCounts(Answer):
    """How many label issues there are of each kind, whatever the filter."""

    wrong: int
    several: int
    mixed: int
    rare: int
    unlike: int
    copies: int


class Left(Answer):
    """How many labels without a decision are estimated wrong: of all labels, or of the listed ones of a filter."""

    wrong: float
    in_next: float = Field(description="how many of the next open ones are")
    next: int = Field(description="how many these next ones are")


class MixedLabels(Answer):
    """Two labels that are given in each other's place, and of how many images: people mix them up, or they are one."""

    labels: tuple[str, str]
    images: float


class ReviewList(Ready):
    """A page of a working list, and how many items there are."""

    total: int
    open: int
    decided: int


class LabelIssueList(ReviewList):
    """Label issues, the most probable errors first.

    `open` and `decided` count those given `label`, suggested `suggested` and of `kind`; `total` those of them in the
    asked state.
    """

    wrong_share: float | None = Field(description="estimated share of wrong labels among all")
    is_lower_bound: bool = Field(
        description="whether more are wrong: the model was trained with labels, and what it has learnt looks right"
    )
    judged: int = Field(description="labels that were looked at")
    items: list[LabelIssueEntry]
    pairs: list[LabelPair]
    left: Left
    kinds: KindCounts
    mixed: list[MixedLabels]
    decisions_used: int = Field(
        description="decisions that this order takes into account; the next update follows"
    )
    can_undo: bool


class Accepted(Answer):
    """What accepting verdicts does, or has done, to the labels without a decision."""

    changed: int = Field(description="labels that become the suggested one")
    dropped: int = Field(description="images that are left out of the label file")
    expected_wrong: float = Field(description="of these, how many labels are estimated wrong")
    expected_right: float = Field(description="of these, how many right labels are lost, by the same estimate")
    digest: str = Field(description="of these decisions: sent back, it makes them")
    step: int | None = Field(description="by which just these decisions can be undone; null where none were made")
    can_undo: bool


def page_issues(snapshot: Snapshot, review: ReviewStore, *, page: LabelIssuePage) -> dict[str, Any]:
    """The document of /v1/labels/issues, once they are there; decisions of the meantime start an update."""
    decisions = review.label_decisions()
    issues = current_issues(snapshot, decisions)
    keys = _find_keys(snapshot.gallery, issues) if decisions else {}
    chosen = filter_issues(issues, page)
    shown, counts = turn_to(page, chosen, lambda issue: keys.get(issue.id) in decisions)
    chances = [issue.wrong for issue in chosen if keys.get(issue.id) not in decisions]
    left = sum(chances)
    if len(chosen) == len(issues.items):  # labels below the list's threshold count, too
        left = issues.wrong_share * issues.judged - sum(d.wrong for d in chosen if keys.get(d.id) in decisions)
    rows = snapshot.gallery.rows(issue.id for issue in shown)
    items = [
        describe_issue(issue, row, decisions.get((row.sha256 or "", row.given_label)))
        for issue, row in zip(shown, rows, strict=True)
    ]
    return {
        "state": "ready",
        "version": snapshot.version,
        **counts,
        "wrong_share": issues.wrong_share,
        "is_lower_bound": issues.is_lower_bound,
        "judged": issues.judged,
        "items": items,
        "pairs": [
            {"label": label, "suggested": other, "count": count}
            for label, other, count in issues.pairs[:MAX_PAIRS]
        ],
        "left": {"wrong": max(left, 0.0), "in_next": sum(chances[:NEXT]), "next": min(NEXT, len(chances))},
        "kinds": issues.count_kinds(),
        "mixed": [{"labels": [one, two], "images": images} for one, two, images in issues.mixed[:MAX_PAIRS]],
        "decisions_used": issues.decisions,
        "can_undo": review.can_undo(),
    }


def apply_verdicts(
    snapshot: Snapshot, review: ReviewStore, body: AcceptVerdicts, *, by: str | None = None
) -> dict[str, Any]:
    """Do what the verdicts say with all labels that are likely enough wrong, as one step; without a digest, count them.

    A step has at most `MAX_STEP_DECISIONS`; of more, those that are the likeliest wrong are accepted. Suggested labels
    that cannot be decided by hand are left alone.

    Raises:
        ApiError: the list is not there yet, or other decisions would be made than were counted.
        ReviewError: the decisions cannot be kept.
    """
    decisions = review.label_decisions()
    issues = current_issues(snapshot, decisions)
    wanted = [
        issue
        for issue in filter_issues(issues, body)
        if issue.wrong >= body.threshold
        and (issue.verdict == DROP or (issue.verdict == CHANGE and _can_be_decided(issue.suggested)))
    ]
    found = snapshot.insights.duplicates
    duplicates = found.value
    if duplicates is None:
        why = found.message or "they are still being looked for"
        raise ApiError(f"the near-duplicates are not known: {why}; ask again", status=409)
    dropping = {issue.id for issue in issues.items if issue.verdict == DROP}
    subjects = find_subjects(snapshot.gallery, [issue.id for issue in wanted])
    chosen: dict[LabelKey, tuple[LabelIssue, LabelDecision]] = {}  # files of the same bytes and label are one
    for issue in wanted:
        subject = subjects[issue.id]
        group = duplicates.find(issue.id) if issue.verdict == DROP else None
        if group is not None and is_spared(subject.label, group, dropping=dropping, decisions=decisions):
            continue
        if subject.key not in decisions and len(chosen) < MAX_STEP_DECISIONS:
            new_label = issue.suggested if issue.verdict == CHANGE else None
            chosen.setdefault(subject.key, (issue, subject.decide(issue.verdict, new_label=new_label)))
    digest = _digest([decision for _, decision in chosen.values()])
    if body.digest not in (None, digest):
        message = "other labels would be decided now than were counted; count them again, without a digest"
        raise ApiError(message, status=409, field="digest")
    step = None
    if chosen and body.digest is not None:
        try:
            step = review.decide([one for _, one in chosen.values()], by=by, seen=decisions).number
        except DecidedSinceError as error:
            raise ApiError(str(error), status=409, field="digest") from error
    changed = sum(decision.decision == CHANGE for _, decision in chosen.values())
    expected = sum(issue.wrong for issue, _ in chosen.values())
    return {
        "changed": changed,
        "dropped": len(chosen) - changed,
        "expected_wrong": expected,
        "expected_right": len(chosen) - expected,
        "digest": digest,
        "step": step,
        "can_undo": review.can_undo(),
    }


def is_spared(
    label: str | None,
    group: DuplicateGroup,
    *,
    dropping: Container[int],
    decisions: Mapping[LabelKey, LabelDecision],
) -> bool:
    """Whether an image is not dropped for its near-duplicates: none of them stays, or one that stays has its label.

    Verdicts may be older than decisions, and do not know what was dropped before.
    """
    staying = set()
    for image in group.images:
        decision = decisions.get((image.sha256, image.label))
        if image.indexed and (decision is not None or image.id not in dropping):
            staying.add(image.label if decision is None else decision.label_after)
    staying.discard(None)
    return not staying or label in staying


def _can_be_decided(label: str | None) -> bool:
    """Whether a suggested label is one that somebody could type: names of folders may be others."""
    try:
        return label is not None and check_label(label) == label
    except InputError:
        return False


def _digest(decisions: Sequence[LabelDecision]) -> str:
    made = sorted(json.dumps([d.sha256, d.label, d.decision, d.new_label]) for d in decisions)
    return hashlib.sha256("\n".join(made).encode()).hexdigest()


def current_issues(snapshot: Snapshot, decisions: Mapping[LabelKey, LabelDecision]) -> LabelIssues:
    """The label issues, as far as they were updated with the decisions."""
    issues = snapshot.insights.update_issues(decisions, find_ids=lambda: _find_decided(snapshot, decisions))
    if issues is None:
        raise ApiError("the label issues are not computed yet; ask again", status=409)
    return issues


def filter_issues(issues: LabelIssues, wanted: LabelIssuePage | AcceptVerdicts) -> list[LabelIssue]:
    """Those of a given label, a suggested label and a kind, the likeliest to be wrong first."""
    return [
        issue
        for issue in issues.items
        if (wanted.label is None or issue.label == wanted.label)
        and (wanted.suggested is None or issue.suggested == wanted.suggested)
        and (wanted.kind is None or issue.kind == wanted.kind)
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


def describe_issue(issue: LabelIssue, row: CatalogRow, decision: LabelDecision | None) -> dict[str, Any]:
    """One issue as the schema `LabelIssueEntry` has it."""
    return {**issue.to_json(), "path": valid_text(row.path), "decision": describe_decision(decision)}


def describe_decision(decision: LabelDecision | None) -> dict[str, Any] | None:
    """A decision as the schema `LabelDecisionEntry` has it."""
    return None if decision is None else {"decision": decision.decision, "label": decision.new_label}


def _find_decided(snapshot: Snapshot, decisions: Mapping[LabelKey, LabelDecision]) -> dict[int, LabelKey]:
    """The images of decisions by id; of several images of one file, all that have issues."""
    found = {number: key for key, number in find_decided_ids(snapshot.gallery, decisions.values()).items()}
    issues = snapshot.insights.label_issues.value
    keys = {} if issues is None else _find_keys(snapshot.gallery, issues)
    return found | {number: key for number, key in keys.items() if key in decisions}


def _find_keys(gallery: Gallery, issues: LabelIssues) -> dict[int, LabelKey]:
    """The keys of decisions about images with issues, by image id."""
    keys = _keys_of.setdefault(gallery.as_given, {})
    if missing := [issue.id for issue in issues.items if issue.id not in keys]:
        with gallery.as_given.catalog() as catalog:
            keys |= {row.id: (row.sha256 or "", row.label) for row in catalog.rows_of(missing)}
    return {issue.id: keys[issue.id] for issue in issues.items if issue.id in keys}
