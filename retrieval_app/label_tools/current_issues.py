"""`retrieval labels` without a server: the issues of a gallery or an audit, decisions imported, verdicts accepted."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from index.durable import write_csv
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decision_files import match_decisions
from index.labels.decisions import P_RIGHT, ImageRef, LabelDecision, LabelKey
from index.labels.issue_tables import read_issues
from index.labels.issues import MIN_P_ERROR, LabelIssue, LabelIssues, collect_issues, make_issues, propose_labels
from index.labels.kinds import count_groups
from index.labels.label_errors import find_label_errors
from index.progress import Progress, no_progress
from index.text import printable_path
from retrieval_app.insights import label_issues
from retrieval_app.insights.background import Insights
from retrieval_app.reports.duplicates_report import DuplicateReport, find_duplicate_groups
from retrieval_app.review.acceptance import AcceptanceFigures, plan_acceptance
from retrieval_app.review.activity_log import record_command
from retrieval_app.review.review_store import MAX_STEP_DECISIONS, ReviewStore
from retrieval_app.review.subjects import find_subjects, read_all_subjects
from retrieval_app.serving.live_gallery import CACHE_FOLDER

DECISIONS_NAME = "decisions.csv"


def list_issues(place: Path, progress: Progress = no_progress) -> tuple[LabelIssues, tuple[float, float, float]]:
    """Label issues with their decisions; the estimated number of wrong labels after these, with a 95 % interval."""
    if (place / "audit.csv").exists():
        audited = read_audited(place)
        errors = [one.p_error for one in audited.items]
        left = sum(one.p_error for one in audited.items if one.decision is None)
        made = {one.key: one.decision for one in audited.items if one.decision is not None}
        left += sum(1 - one.p_right for one in made.values() if not one.leaves_out)
        listed = [one for one in audited.items if one.p_error >= MIN_P_ERROR]
        return collect_issues(listed, checked=len(errors), errors=sum(errors)), (left, left, left)
    gallery = Gallery.open(place)
    issues, _, decisions = find_current_issues(gallery, progress)
    counted = label_issues.count_errors_left(gallery, issues, decisions)
    return replace(issues, items=locate_images(gallery, issues.items)).with_decisions(decisions), counted


def find_current_issues(
    opened: Gallery, progress: Progress = no_progress
) -> tuple[LabelIssues, DuplicateReport, Mapping[LabelKey, LabelDecision]]:
    """Label issues of a gallery after its decisions, kept as the Labels view keeps them; near-duplicates, decisions."""
    decisions = ReviewStore.of_gallery(opened.path).label_decisions()
    with closing(Insights(opened, cache=opened.path / CACHE_FOLDER)) as insights:
        issues, duplicates = insights.compute_issues(decisions, progress)
    if not issues.checked:
        raise InputError("no label can be checked; build it from more images", at=opened.name)
    return label_issues.without_dropped_copies(issues, opened), duplicates, decisions


def score_gallery(gallery: Gallery, progress: Progress = no_progress) -> LabelIssues:
    """Label-error detection on a gallery's given labels, with all labels as items, and then images without one.

    Labels of one image, near-duplicates apart, are left out.
    """
    gallery = gallery.without_decisions
    images = label_issues.read_labelled(gallery, find_duplicate_groups(gallery, progress))
    own, loose = images.labelled, images.unlabelled
    own = own.take(np.flatnonzero(count_groups(own.labels, own.groups)[own.labels] > 1))
    count = len(own.names)
    if count < 2:
        raise InputError(
            f"{printable_path(gallery.name)}: {count} labels with two different images or more, "
            "expected at least 2; build it from images of more labels"
        )
    found = find_label_errors(
        own.vectors, own.labels, count=count, groups=own.groups, unlabelled=loose.vectors, progress=progress
    )
    order = np.argsort(-found.p_error, kind="stable")
    items = make_issues(own, found, order)
    items += propose_labels(found, loose.ids, own.names, np.argsort(-found.p_proposed[:, 0], kind="stable"))
    return LabelIssues(
        locate_images(gallery, items),
        checked=len(order),
        noise_rate=float(found.p_error.mean()),
        is_lower_bound=gallery.knows_labels,
    ).with_decisions(ReviewStore.of_gallery(gallery.path).label_decisions())


def locate_images(gallery: Gallery, items: Sequence[LabelIssue]) -> tuple[LabelIssue, ...]:
    """Label issues with the bytes and the path of their images."""
    subjects = find_subjects(gallery, [issue.id for issue in items])
    return tuple(replace(issue, sha256=subjects[issue.id].sha256, path=subjects[issue.id].path) for issue in items)


def read_audited(folder: Path) -> LabelIssues:
    """The labels of a finished audit, with the decisions about them."""
    audited, saved = read_issues(folder / "audit.csv"), folder / DECISIONS_NAME
    if not saved.exists():
        return audited
    made, _ = match_decisions(saved, subjects_of(audited), of_page=True)
    return audited.with_decisions({one.key: one for one in made})


def subjects_of(audited: LabelIssues) -> list[ImageRef]:
    """The images of an audit."""
    return [ImageRef(one.id, one.sha256, one.label, one.path) for one in audited.items]


def import_decisions(place: Path, file: Path) -> dict[str, int]:
    """Import the decisions of a file; the number of decisions, and of those about unknown images."""
    if (place / "audit.csv").exists():
        audited = read_audited(place)
        found, unknown = match_decisions(file, subjects_of(audited))
        before = {one.key: one.decision for one in audited.items if one.decision is not None}
        decisions = _leave_out_held(found, before)
        all_of_them = before | {d.key: d for d in decisions}
        rows = [[d.path, d.sha256, d.label, d.decision, d.new_label, d.p_right] for d in all_of_them.values()]
        write_csv(place / DECISIONS_NAME, ["path", "sha256", "label", "decision", "new_label", P_RIGHT], rows)
    else:
        gallery = Gallery.open(place)
        found, unknown = match_decisions(file, read_all_subjects(gallery))
        store = ReviewStore.of_gallery(gallery.path)
        decisions = _leave_out_held(found, store.label_decisions())
        for start in range(0, len(decisions), MAX_STEP_DECISIONS):
            store.decide(decisions[start : start + MAX_STEP_DECISIONS])
        store.close()
        if decisions:
            record_command(gallery.path, "import-decisions", count=len(decisions))
    return {"decided": len(decisions), "unknown": unknown}


def _leave_out_held(decisions: Sequence[LabelDecision], held: Mapping[LabelKey, LabelDecision]) -> list[LabelDecision]:
    """Decisions that say something else than those that hold, which keep their author and their certainty."""
    return [one for one in decisions if one.key not in held or held[one.key].meaning != one.meaning]


def accept_verdicts(
    gallery: Path,
    *,
    at_least_right: float | None = None,
    threshold: float | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> tuple[AcceptanceFigures, int | None]:
    """Decide on the open label issues of a gallery in one step, as `plan_acceptance` says; the effect and the step."""
    opened = Gallery.open(gallery)
    issues, duplicates, decisions = find_current_issues(opened, progress)
    plan = plan_acceptance(
        opened, issues, duplicates=duplicates, decisions=decisions, at_least_right=at_least_right, threshold=threshold
    )
    if dry_run or not plan.decisions:
        return plan.figures, None
    step = ReviewStore.of_gallery(opened.path).decide((*plan.decisions, *plan.left_open), seen=decisions)
    figures = plan.figures.model_dump(include={"threshold", "changed", "set_aside", "dropped"})
    record_command(opened.path, "accept-verdicts", step=step.number, **figures)
    return plan.figures, step.number
