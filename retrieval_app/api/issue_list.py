"""Label issues as a working list: which are open, which decided, page by page."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import Field

from index.gallery.gallery import Gallery
from index.labels.decisions import SET_ASIDE, DecisionSource, LabelDecision, LabelKey
from index.labels.issues import LabelIssue, LabelIssues
from index.labels.kinds import PROPOSAL, IssueKind
from index.labels.verdicts import Verdict
from index.text import valid_text
from retrieval_app.api.errors import ApiError
from retrieval_app.api.schemas import AcceptVerdicts, Answer, DuplicatePage, LabelIssuePage, ListedImage, Ready
from retrieval_app.insights.answer import ScoredImage
from retrieval_app.insights.label_issues import count_errors_left, without_dropped_copies
from retrieval_app.reports.duplicates_report import DuplicateReport
from retrieval_app.review.acceptance import AcceptanceFigures, plan_acceptance
from retrieval_app.review.certificates import read_certificate
from retrieval_app.review.database import DecidedSinceError
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot

MAX_PAIRS = 200
NEXT = 50  # open issues, of which the answer says how many are probably errors
Item = TypeVar("Item")
_SAME_FIELDS = ("id", "label", "suggested", "p_error", "p_suggested", "p_none", "kind", "verdict")


class Suggestion(Answer):
    """A label that the image may have instead."""

    label: str
    probability: float


class LabelDecisionEntry(Answer):
    """The decision about a label; `label` is the new label of a change."""

    decision: Literal["keep", "change", "set_aside", "drop"]
    label: str | None
    source: DecisionSource = Field(description="who decided")
    by: str | None = Field(
        default=None, description="the name of the person who decided; only for visitors who may decide"
    )
    p_right: float = Field(description="probability that the label is right; 1 where a person looked")


class LabelIssueEntry(ListedImage):
    """A label that is probably wrong, and why; or a proposal for an image without a label."""

    suggested: str | None
    p_error: float = Field(
        description="probability that the label is wrong; of kind `unlabelled`, that the suggested label is right; "
        "0 without a kind"
    )
    p_suggested: float = Field(description="probability that the suggested label is right")
    p_none: float = Field(description="probability that the image shows none of the labels")
    suggestions: list[Suggestion]
    kind: IssueKind | None = Field(
        description="`wrong_label`, another label fits better; `ambiguous`, two labels are probable; "
        "`confused_classes`, the label and the suggested one are used for each other; `rare_class`, fewer than five "
        "images have the label; `outlier`, the image shows none of the labels; `conflicting_duplicates`, a "
        "near-duplicate has another label; `split_class`, the smaller part of a label whose images are of two kinds "
        "that are not alike; `unlabelled`, the image has no label and one is proposed; null, the image was set "
        "aside, or is of the sample of a certificate, and its label is no issue"
    )
    verdict: Verdict = Field(
        description="what `POST /v1/labels/accept` does by default: `change` the label to `suggested`; `set_aside`, "
        "as no label is probable enough; `drop` the image, which shows none of the labels or repeats one with a more "
        "probable label; `keep` leaves it open"
    )
    agreeing: list[ScoredImage]
    disagreeing: list[ScoredImage]
    decision: LabelDecisionEntry | None


class LabelPair(Answer):
    """Number of label issues with the same label and suggestion."""

    label: str
    suggested: str
    count: int


class Left(Answer):
    """Estimated label errors that are left, of all labels or of the issues of a filter."""

    errors: float = Field(description="without a filter also those among labels that were accepted in bulk")
    in_next: float = Field(description="estimated errors among the next open issues")
    next: int = Field(description="number of these next open issues")
    low: float = Field(description="of a 95 % interval of `errors`, without a filter; 0 with one")
    high: float
    as_predicted: int = Field(description="labels that people decided as the probabilities had it")
    looked_at: int = Field(description="labels that people decided; what they found recalibrates all probabilities")


class ConfusedClasses(Answer):
    """Two labels that are used for each other, and the estimated number of images."""

    labels: tuple[str, str]
    images: float


class ReviewList(Ready):
    """A page of a working list, and how many items there are."""

    total: int
    open: int
    decided: int
    decisions_used: int = Field(description="label decisions that the list takes into account")
    is_updating: bool = Field(description="whether a list follows that takes newer decisions into account: ask again")


class LabelIssueList(ReviewList):
    """Label issues, the most probable errors first; decided ones that were accepted in bulk before the rest.

    `open` and `decided` count those of the filter without the images `set_aside`, `total` those in the requested
    state. In the state `sample` are the images that were drawn for a certificate and wait for an answer.
    """

    set_aside: int = Field(description="images that are set aside, also those whose label is no issue")
    noise_rate: float | None = Field(description="estimated share of wrong labels among all")
    is_lower_bound: bool = Field(
        description="whether `noise_rate` is too low, because the model was trained with these labels"
    )
    caution: str | None = Field(description="why the list is worth less than usual")
    checked: int = Field(description="number of labels that were checked")
    items: list[LabelIssueEntry]
    pairs: list[LabelPair]
    left: Left
    kinds: dict[IssueKind, int] = Field(description="label issues of each kind, whatever the filter")
    confused_classes: list[ConfusedClasses]
    can_undo: bool


class Accepted(AcceptanceFigures):
    """Effect of accepting verdicts on the labels without a decision."""

    digest: str = Field(description="of these decisions; a request with it makes them")
    step: int | None = Field(description="number of the step, to undo it; null where nothing was decided")
    can_undo: bool


def page_issues(snapshot: Snapshot, review: ReviewStore, *, page: LabelIssuePage, names: bool = True) -> dict[str, Any]:
    """Page of the label issues; new decisions start an update. `names`: whether the visitor may see who decided."""
    decisions = review.label_decisions()
    issues = current_issues(snapshot, decisions)
    chosen = [issue for issue in issues.items if _is_wanted(issue, page)]
    aside = _list_set_aside(snapshot.gallery, issues, page)
    aside_ids = {issue.id for issue in aside}
    listed = [issue for issue in chosen if issue.id not in aside_ids]
    if page.state == "decided":  # what was accepted in bulk first, the least probable of it before the rest
        listed.sort(key=lambda issue: decisions[issue.key].p_right if issue.key in decisions else 1.0)
    sample = _list_sample(snapshot.gallery, issues, decisions) if page.state == "sample" else []
    shown, counts = turn_to(page, listed, lambda issue: issue.key in decisions, aside=aside, sample=sample)
    open_errors = [issue.p_error for issue in chosen if issue.key not in decisions]
    left, low, high = sum(open_errors), 0.0, 0.0
    if not (page.label or page.suggested or page.kind):  # labels below the list's threshold count, too
        left, low, high = count_errors_left(snapshot.gallery, issues, decisions)
    rows = snapshot.gallery.rows(issue.id for issue in shown)
    items = [
        describe_issue(issue, row.path, decisions.get(issue.key), names=names)
        for issue, row in zip(shown, rows, strict=True)
    ]
    return {
        "state": "ready",
        "version": snapshot.version,
        **counts,
        "set_aside": len(aside),
        "noise_rate": issues.noise_rate,
        "is_lower_bound": issues.is_lower_bound,
        "caution": issues.caution,
        "checked": issues.checked,
        "items": items,
        "pairs": [
            {"label": label, "suggested": other, "count": count} for label, other, count in issues.pairs[:MAX_PAIRS]
        ],
        "left": {
            "errors": max(left, 0.0),
            "in_next": sum(open_errors[:NEXT]),
            "next": min(NEXT, len(open_errors)),
            "low": low,
            "high": high,
            "as_predicted": issues.as_predicted[0],
            "looked_at": issues.as_predicted[1],
        },
        "kinds": issues.count_kinds(),
        "confused_classes": [
            {"labels": [one, two], "images": images} for one, two, images in issues.confused_classes[:MAX_PAIRS]
        ],
        "decisions_used": issues.decisions,
        "is_updating": snapshot.insights.is_updating(decisions),
        "can_undo": review.can_undo(),
    }


def apply_verdicts(
    snapshot: Snapshot, review: ReviewStore, body: AcceptVerdicts, *, by: str | None = None
) -> dict[str, Any]:
    """Apply the verdicts on the label issues of a filter as one step; without a digest, only count them."""
    decisions = review.label_decisions()
    issues = current_issues(snapshot, decisions)
    plan = plan_acceptance(
        snapshot.gallery,
        issues,
        duplicates=need_duplicates(snapshot),
        decisions=decisions,
        chosen=partial(_is_wanted, wanted=body),
        at_least_right=body.at_least_right,
        threshold=body.threshold,
    )
    if body.digest not in (None, plan.digest):
        raise ApiError("the estimate has changed, so nothing was done; look again", status=409, field="digest")
    step = None
    if plan.decisions and body.digest is not None:
        try:
            step = review.decide((*plan.decisions, *plan.left_open), by=by, seen=decisions).number
        except DecidedSinceError as error:
            raise ApiError(str(error), status=409, field="digest") from error
    return {**plan.figures.model_dump(), "digest": plan.digest, "step": step, "can_undo": review.can_undo()}


def need_duplicates(snapshot: Snapshot) -> DuplicateReport:
    """The groups of near-duplicates; ApiError until they are found."""
    found = snapshot.insights.duplicates
    if found.value is None:
        why = found.message or "they are still being computed"
        raise ApiError(f"this needs the near-duplicates: {why}; try again in a moment", status=409)
    return found.value


def current_issues(snapshot: Snapshot, decisions: Mapping[LabelKey, LabelDecision]) -> LabelIssues:
    """The label issues, as far as they were updated with the decisions; without dropped near-duplicates."""
    issues = snapshot.insights.update_issues(decisions)
    if issues is None:
        raise ApiError("the label issues are still being computed; try again in a moment", status=409)
    return without_dropped_copies(issues, snapshot.gallery)


def find_open_issues(snapshot: Snapshot, decisions: Mapping[LabelKey, LabelDecision]) -> list[LabelIssue] | None:
    """The label issues without a decision; None before they are found."""
    issues = snapshot.insights.update_issues(decisions)
    if issues is None:
        return None
    errors = without_dropped_copies(issues, snapshot.gallery).errors
    return [issue for issue in errors if issue.key not in decisions]


def _is_wanted(issue: LabelIssue, wanted: LabelIssuePage | AcceptVerdicts) -> bool:
    """Whether a filter keeps an issue; without a kind it keeps no proposals."""
    is_kind = issue.kind != PROPOSAL if wanted.kind is None else issue.kind == wanted.kind
    return is_kind and _has_labels(issue, wanted)


def _has_labels(issue: LabelIssue, wanted: LabelIssuePage | AcceptVerdicts) -> bool:
    return (wanted.label is None or issue.label == wanted.label) and (
        wanted.suggested is None or issue.suggested == wanted.suggested
    )


def _list_set_aside(gallery: Gallery, issues: LabelIssues, wanted: LabelIssuePage) -> list[LabelIssue]:
    """Images that are set aside, images with an issue first; without a kind also unlabelled images."""
    aside = {number: one for number, one in gallery.decided.by_id.items() if one.left_out == SET_ASIDE}
    found = [issue for issue in issues.items if issue.id in aside]
    others = sorted(aside.keys() - {issue.id for issue in found})
    with gallery.without_decisions.catalog() as catalog:
        rows = [row for row in catalog.rows_of(others) if row.status == "indexed"]
    found += [LabelIssue(row.id, row.label, 0.0, verdict=SET_ASIDE, sha256=row.sha256 or "") for row in rows]
    return [
        issue for issue in found if _is_wanted(issue, wanted) or (wanted.kind is None and _has_labels(issue, wanted))
    ]


def _list_sample(
    gallery: Gallery, issues: LabelIssues, decisions: Mapping[LabelKey, LabelDecision]
) -> list[LabelIssue]:
    """The drawn images that wait for an answer, in the order in which they were drawn."""
    found = read_certificate(gallery, decisions)
    pending = [] if found is None else found.pending
    by_key = {issue.key: issue for issue in issues.errors}
    with gallery.without_decisions.catalog() as catalog:
        ids = {(sha, label): number for number, sha, label in catalog.find_contents({sha for sha, _ in pending})}
    return [by_key.get(key) or LabelIssue(ids[key], key[1], 0.0, sha256=key[0]) for key in pending if key in ids]


def turn_to(
    page: DuplicatePage | LabelIssuePage,
    items: Sequence[Item],
    is_decided: Callable[[Item], bool],
    *,
    aside: Sequence[Item] = (),
    sample: Sequence[Item] = (),
) -> tuple[Sequence[Item], dict[str, int]]:
    """The items of a page of a working list, and the counts of open and decided ones; the others are further ones."""
    decided = [item for item in items if is_decided(item)]
    open_ = [item for item in items if not is_decided(item)]
    by_state = {"all": [*items, *aside], "open": open_, "decided": decided, "set_aside": aside, "sample": sample}
    listed = by_state[page.state]
    counts = {"total": len(listed), "open": len(open_), "decided": len(decided)}
    return listed[page.offset : page.offset + page.limit], counts


def describe_issue(issue: LabelIssue, path: str, decision: LabelDecision | None, *, names: bool) -> dict[str, Any]:
    """Fields of `LabelIssueEntry`; `names` as in `page_issues`."""
    return {
        **{name: getattr(issue, name) for name in _SAME_FIELDS},
        "path": valid_text(path),
        "suggestions": [{"label": label, "probability": share} for label, share in issue.suggestions],
        "agreeing": [{"id": near, "score": score} for near, score in issue.agreeing],
        "disagreeing": [{"id": near, "score": score, "label": label} for near, score, label in issue.disagreeing],
        "decision": describe_decision(decision, names=names),
    }


def describe_decision(decision: LabelDecision | None, *, names: bool = False) -> dict[str, Any] | None:
    """Fields of `LabelDecisionEntry`; `names` as in `page_issues`."""
    if decision is None:
        return None
    return {
        "decision": decision.decision,
        "label": decision.new_label,
        "source": decision.source,
        "p_right": decision.p_right,
        **({"by": decision.decided_by} if names else {}),
    }
