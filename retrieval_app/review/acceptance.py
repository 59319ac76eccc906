"""Bulk acceptance of verdicts: decisions after which a given share of labels is right, and their expected effect."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import Field

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import (
    CHANGE,
    DROP,
    KEEP,
    MAX_UNREVIEWED_P_RIGHT,
    OPEN,
    SET_ASIDE,
    LabelDecision,
    LabelKey,
    check_label,
)
from index.labels.issues import LabelIssue, LabelIssues
from index.labels.kinds import LIKELY_ERROR, PROPOSAL
from index.labels.verdicts import (
    AT_LEAST_RIGHT,
    UNDECIDED,
    ExpectedRight,
    Verdict,
    choose_threshold,
    choose_threshold_beside,
    choose_verdicts,
    expect_right,
)
from retrieval_app.insights.answer import Answer
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport
from retrieval_app.review.review_store import MAX_STEP_DECISIONS
from retrieval_app.review.subjects import find_decided_ids, find_subjects


class AcceptanceFigures(Answer):
    """Effect of accepting verdicts on the labels without a decision."""

    threshold: float = Field(
        description="the requested one; with `at_least_right` the least probability of a label that stays or is set"
    )
    changed: int = Field(description="number of labels that become the suggested one")
    changed_right: float = Field(description="estimated number of these that are right then")
    set_aside: int = Field(description="number of images that leave training and results until a person decides")
    dropped: int = Field(description="number of images that show none of the labels, or repeat another one")
    stay: int = Field(description="number of labels that stay as they are, undecided")
    kept: ExpectedRight = Field(
        description="labels that stay, and the share (0..1) of right ones to expect among them, with an interval"
    )
    no_promise: str | None = Field(description="why that share cannot be promised; null where it can")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Decisions that accept verdicts, and their effect.

    `left_open` are kept beside them: of issues that stay open, with the probability that the label is right.
    """

    decisions: tuple[LabelDecision, ...]
    left_open: tuple[LabelDecision, ...]
    figures: AcceptanceFigures

    @property
    def digest(self) -> str:
        """SHA-256 of the decisions."""
        made = sorted(json.dumps([d.sha256, d.label, d.decision, d.new_label]) for d in self.decisions)
        return hashlib.sha256("\n".join(made).encode()).hexdigest()


def plan_acceptance(
    gallery: Gallery,
    issues: LabelIssues,
    *,
    duplicates: DuplicateReport,
    decisions: Mapping[LabelKey, LabelDecision],
    chosen: Callable[[LabelIssue], bool] = lambda issue: issue.kind != PROPOSAL,
    at_least_right: float | None = None,
    threshold: float | None = None,
) -> Acceptance:
    """Plan decisions about open label issues, so that at least a share of all labels that stay is right.

    The decisions are one step: at most `MAX_STEP_DECISIONS`, for the most probable errors. An image is set aside if a
    person could not type its suggested label. `chosen` filters the issues, for either proposals or other issues. A
    `threshold` decides on all issues with at least this probability of a label error instead.
    """
    present = find_decided_ids(gallery, decisions.values())
    held = [decisions[key].p_right for key in present if decisions[key].label_after is not None]
    open_issues = [issue for issue in issues.items if issue.key not in decisions]
    errors = [issue for issue in open_issues if issue.kind != PROPOSAL]
    wanted = [issue for issue in open_issues if chosen(issue)]
    is_proposal = bool(wanted) and wanted[0].kind == PROPOSAL
    rest, rest_p_error = _estimate_unlisted(issues, errors, decisions=decisions, present=present)
    share = AT_LEAST_RIGHT if at_least_right is None else at_least_right
    if threshold is not None:
        least, wanted = LIKELY_ERROR, [issue for issue in wanted if issue.p_error >= threshold]
    elif is_proposal:
        least = choose_threshold(np.array([issue.p_suggested for issue in wanted]), share)
    else:
        least = _choose_threshold(errors, share, others=[1 - rest_p_error] * rest, held=held)
    verdicts = dict(zip((issue.id for issue in wanted), _apply_threshold(wanted, least=least), strict=True))
    made = _decide(gallery, wanted, verdicts, duplicates=duplicates, decisions=decisions, issues=issues)
    decided_ids = {issue.id for issue, _ in made}
    stay = [issue for issue in errors if issue.id not in decided_ids]
    changed = [one.p_right for _, one in made if one.decision == CHANGE]
    stay_right = sum(1 - issue.p_error for issue in stay) + rest * max(1 - rest_p_error, 0.0)
    kept = expect_right(len(stay) + rest + len(changed) + len(held), stay_right + sum(changed) + sum(held))
    left_open: list[LabelDecision] = []
    if not is_proposal:
        others_right, last = (
            min(1 - rest_p_error, MAX_UNREVIEWED_P_RIGHT),
            int(gallery.without_decisions.ids.max(initial=0)),
        )
        made = [(issue, replace(one, others_right=others_right, others_to=last)) for issue, one in made]
        left_open = _leave_open(gallery, stay[: MAX_STEP_DECISIONS - len(made)], but={one.key for _, one in made})
    counts = Counter(one.decision for _, one in made)
    figures = AcceptanceFigures(
        threshold=least if threshold is None else threshold,
        changed=counts[CHANGE],
        changed_right=sum(changed),
        set_aside=counts[SET_ASIDE],
        dropped=counts[DROP],
        stay=len(stay) + rest,
        kept=kept,
        no_promise=issues.no_promise if kept.images else "no label would stay",
    )
    return Acceptance(tuple(one for _, one in made), tuple(left_open), figures)


def _estimate_unlisted(
    issues: LabelIssues,
    errors: Sequence[LabelIssue],
    *,
    decisions: Mapping[LabelKey, LabelDecision],
    present: Mapping[LabelKey, int],
) -> tuple[int, float]:
    """Number of undecided labels that are not listed as issues, and their mean probability of an error."""
    listed = {issue.key: issue for issue in issues.errors if issue.key in decisions}
    unlisted = issues.checked - len(errors) - len(listed)
    decided = sum(label is not None for _, label in present.keys() - listed.keys())
    of_listed = sum(issue.p_error for issue in (*errors, *listed.values()))
    p_error = max(issues.noise_rate * issues.checked - of_listed, 0.0) / max(unlisted, 1)
    return max(unlisted - decided, 0), p_error


def _choose_threshold(
    errors: Sequence[LabelIssue], share: float, *, others: Sequence[float], held: Sequence[float]
) -> float:
    """Threshold of `choose_threshold_beside`, with `others` that are no issues, and `held` labels that were decided."""
    p_label = [*(1 - issue.p_error for issue in errors), *others]
    p_suggested = [issue.p_suggested if _can_be_decided(issue.suggested) else 0 for issue in errors]
    p_best = np.maximum(p_label, [*p_suggested, *[0.0] * len(others)])
    fixed = [*map(_fixed_verdict, errors), *[None] * len(others)]
    return choose_threshold_beside(np.array(p_label), p_best, fixed, share, held=np.array(held))


def _leave_open(gallery: Gallery, issues: Sequence[LabelIssue], *, but: Container[LabelKey]) -> list[LabelDecision]:
    """`OPEN` decisions, which store the probability that each label is right."""
    subjects = find_subjects(gallery, [issue.id for issue in issues])
    opened = ((subjects[issue.id].decide(OPEN), min(1 - issue.p_error, MAX_UNREVIEWED_P_RIGHT)) for issue in issues)
    found = {one.key: replace(one, source="bulk", p_right=p_right) for one, p_right in opened if one.key not in but}
    return list(found.values())


def _apply_threshold(issues: Sequence[LabelIssue], *, least: float) -> list[Verdict]:
    """Verdict on each issue, with the threshold `least`."""
    p_error, p_suggested, p_none = (
        np.array([getattr(issue, name) for issue in issues]) for name in ("p_error", "p_suggested", "p_none")
    )
    by_threshold = choose_verdicts(1 - p_error, p_suggested, p_none, threshold=least) if issues else []
    verdicts = []
    for issue, by_probabilities in zip(issues, by_threshold, strict=True):
        verdict = _fixed_verdict(issue) or by_probabilities
        if issue.kind == PROPOSAL:
            verdict = CHANGE if issue.verdict == CHANGE and issue.p_suggested >= least else KEEP
        if verdict == CHANGE and not _can_be_decided(issue.suggested):
            verdict = KEEP if issue.kind == PROPOSAL else SET_ASIDE
        verdicts.append(verdict)
    return verdicts


def _fixed_verdict(issue: LabelIssue) -> Verdict | None:
    """Verdict on a rare label, or a near-duplicate with another label; None where the probabilities decide."""
    is_rare = issue.verdict == KEEP and issue.p_error > LIKELY_ERROR and issue.kind != PROPOSAL
    if issue.kind == "rare_class" or is_rare:
        return KEEP
    is_fixed = issue.kind == "conflicting_duplicates" and issue.verdict in (DROP, KEEP)
    return issue.verdict if is_fixed else None


def _decide(
    gallery: Gallery,
    wanted: Sequence[LabelIssue],
    verdicts: Mapping[int, Verdict],
    *,
    duplicates: DuplicateReport,
    decisions: Mapping[LabelKey, LabelDecision],
    issues: LabelIssues,
) -> list[tuple[LabelIssue, LabelDecision]]:
    """Decisions by the verdicts that are not `UNDECIDED`; files of the same bytes and label share one."""
    subjects = find_subjects(gallery, [issue.id for issue in wanted])
    dropping = {issue.id for issue in issues.items if verdicts.get(issue.id, issue.verdict) in (DROP, SET_ASIDE)}
    made: dict[LabelKey, tuple[LabelIssue, LabelDecision]] = {}
    for issue in wanted:
        verdict, subject = verdicts[issue.id], subjects[issue.id]
        group = duplicates.find(issue.id) if verdict == DROP and issue.kind == "conflicting_duplicates" else None
        if (
            verdict in UNDECIDED
            or len(made) == MAX_STEP_DECISIONS
            or (group is not None and is_spared(subject.label, group, dropping=dropping, decisions=decisions))
        ):
            continue
        decision = subject.decide(verdict, new_label=issue.suggested if verdict == CHANGE else None)
        p_right = min(issue.p_suggested, MAX_UNREVIEWED_P_RIGHT) if verdict == CHANGE else 1.0
        made.setdefault(subject.key, (issue, replace(decision, source="bulk", p_right=p_right)))
    return list(made.values())


def is_spared(
    label: str | None, group: DuplicateGroup, *, dropping: Container[int], decisions: Mapping[LabelKey, LabelDecision]
) -> bool:
    """Whether an image is not dropped, because no near-duplicate stays, or a staying one has its label."""
    staying = set()
    for image in group.images:
        decision = decisions.get((image.sha256, image.label))
        if image.indexed and (decision is not None or image.id not in dropping):
            staying.add(image.label if decision is None else decision.label_after)
    staying.discard(None)
    return not staying or label in staying


def _can_be_decided(label: str | None) -> bool:
    """Whether a person could type a suggested label; folder names may have other characters."""
    try:
        return label is not None and check_label(label) == label
    except InputError:
        return False
