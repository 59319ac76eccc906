"""Label issues of a gallery: labels that its vectors contradict, also after people decided about some."""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, P_RIGHT, LabelDecision, LabelKey
from index.labels.issues import CheckedImages, LabelIssues, collect_issues
from index.labels.kinds import COPIES, LIKELY_ERROR, PROPOSAL
from index.labels.label_errors import find_label_errors
from index.labels.list_issues import list_label_issues
from index.labels.recalibration import Recalibration
from index.labels.simulated_noise import ErrorCalibration
from index.progress import Progress, no_progress
from retrieval_app.reports.duplicates_report import DuplicateReport, find_duplicate_groups

Decisions: TypeAlias = Mapping[LabelKey, LabelDecision]
"""Current label decisions by key."""


def find_label_issues(
    gallery: Gallery, progress: Progress = no_progress, *, duplicates: DuplicateReport | None = None
) -> tuple[LabelIssues, ErrorCalibration | None]:
    """The labels that the gallery's vectors contradict, proposals for images without a label, and the calibration."""
    images = read_labelled(gallery, duplicates or find_duplicate_groups(gallery))
    found, calibration = list_label_issues(images, progress=progress)
    if calibration is not None:
        unchanged = Recalibration.fit(np.empty(0), np.empty(0, dtype=bool))
        found = replace(found, open_share=unchanged.estimate_share(calibration.p_error))
    return replace(_name_contents(found, gallery), is_lower_bound=gallery.knows_labels), calibration


def _name_contents(found: LabelIssues, gallery: Gallery) -> LabelIssues:
    """Add the SHA-256 of the images."""
    with gallery.catalog() as catalog:
        contents = catalog.contents(issue.id for issue in found.items)
    return replace(found, items=tuple(replace(issue, sha256=contents[issue.id]) for issue in found.items))


def read_labelled(gallery: Gallery, duplicates: DuplicateReport) -> CheckedImages:
    """All images of the gallery with the vectors that label errors are found by, and their column `p_right`."""
    vectors, labels, ids, names = gallery.for_label_errors().labelled_vectors()
    with gallery.catalog() as catalog:
        stated = catalog.read_numbers(P_RIGHT)
    p_right = np.array([stated.get(number, np.nan) for number in ids.tolist()], dtype=np.float64).clip(0, 1)
    groups, copies = duplicates.groups_of(ids), duplicates.copies_of(ids)
    return CheckedImages(vectors, labels, ids, groups, p_right, tuple(names), copies)


def apply_decisions(
    gallery: Gallery,
    decisions: Decisions,
    *,
    base: LabelIssues,
    before: ErrorCalibration | None,
    duplicates: DuplicateReport,
    progress: Progress = no_progress,
) -> tuple[LabelIssues, ErrorCalibration | None]:
    """Label issues after decisions: detection runs again, with the labels that people decided as right.

    What people found recalibrates the probabilities of all others.
    Labels that a machine decided take part as they were given; where no person decided, nothing is detected again.

    Args:
        base: the label issues from before the decisions; those with decisions stay as they were.
        before: calibration from before the decisions; None computes it first, which takes as long again.
    """
    with gallery.catalog() as catalog:
        found = catalog.find_contents({sha256 for sha256, _ in decisions})
        decided = {number: decisions[sha, label] for number, sha, label in found if (sha, label) in decisions}
    by_people = {number: one for number, one in decided.items() if one.source != "bulk" and one.p_right == 1}
    if not by_people:  # a machine that learns from its own decisions becomes too sure of what it left
        return replace(base, decisions=len(decisions)), before
    given = read_labelled(gallery, duplicates)
    if before is None:
        own = given.labelled
        before = find_label_errors(
            own.vectors, own.labels, count=len(own.names), groups=own.groups, p_right=own.p_right, progress=progress
        ).calibration
    copies = {one.id for one in base.items if one.kind == COPIES}
    learnt, summary = _learn(given.labelled, by_people, before, copies=copies)
    now, _ = list_label_issues(_relabel(given, by_people), decided=decided, before=learnt, progress=progress)
    # What was decided stays listed as the issue that it was decided for.
    kept = [issue for issue in base.items if issue.id in decided]
    others = [one for one in _name_contents(now, gallery).items if one.id not in decided]
    items = sorted([*kept, *others], key=lambda issue: (issue.kind == PROPOSAL, -issue.p_error))
    errors = sum(issue.p_error for issue in kept if issue.kind != PROPOSAL) + now.noise_rate * now.checked
    updated = collect_issues(
        items, checked=base.checked, errors=errors, confused_classes=now.confused_classes, base=base
    )
    return replace(updated, decisions=len(decisions), **summary), before


def _learn(
    images: CheckedImages, decided: Mapping[int, LabelDecision], before: ErrorCalibration, *, copies: Container[int]
) -> tuple[ErrorCalibration, dict[str, Any]]:
    """Calibration before decisions, recalibrated by the reviewed labels; and counts of these for the list."""
    made = [(row, decided[number]) for row, number in enumerate(images.ids.tolist()) if number in decided]
    made = [(row, one) for row, one in made if one.is_look]
    rows, decisions = np.array([row for row, _ in made], dtype=np.int64), [one for _, one in made]
    p_error, wrong = before.p_error[rows], np.array([one.label_after != one.label for one in decisions], dtype=bool)
    of_errors = Recalibration.fit(p_error, wrong)
    # Set aside may mean anything, and so may a dropped copy: the others tell of images of no class.
    alone = np.array([number not in copies for number in images.ids[rows].tolist()], dtype=bool)
    tells = wrong & alone & np.array([one.decision in (CHANGE, DROP) for one in decisions], dtype=bool)
    is_none = np.array([one.decision == DROP for one in decisions], dtype=bool)
    of_none = Recalibration.fit(before.none_if_wrong[rows][tells], is_none[tells])
    learnt = replace(
        before,
        p_error=of_errors.apply(before.p_error),
        none_if_wrong=of_none.apply(before.none_if_wrong).astype(before.none_if_wrong.dtype),
        p_none=of_none.apply(before.p_none),
    )
    summary: dict[str, Any] = {"as_predicted": (int(((p_error >= LIKELY_ERROR) == wrong).sum()), len(rows))}
    if len(rest := np.delete(before.p_error, rows)):
        summary["open_share"] = of_errors.estimate_share(rest)
    return learnt, summary


def _relabel(images: CheckedImages, decided: Mapping[int, LabelDecision]) -> CheckedImages:
    """Images with decided labels, without images that decisions leave out."""
    numbers = {name: number for number, name in enumerate(images.names)}
    labels, p_right, stays = images.labels.copy(), images.p_right.copy(), np.ones(len(images.ids), dtype=bool)
    positions = {number: position for position, number in enumerate(images.ids.tolist())}
    for position, decision in ((positions[number], one) for number, one in decided.items() if number in positions):
        if decision.label_after is None:
            stays[position] = False
        else:
            labels[position] = numbers.setdefault(decision.label_after, len(numbers))
            p_right[position] = 1.0
    relabelled = replace(images, labels=labels, p_right=p_right, names=tuple(numbers))
    return relabelled.take(np.flatnonzero(stays))


def count_errors_left(gallery: Gallery, issues: LabelIssues, decisions: Decisions) -> tuple[float, float, float]:
    """Estimated number of wrong labels that are left, with a 95 % interval.

    Of open labels, and of those that no person looked at.
    """
    decided = sum(issue.p_error for issue in issues.errors if issue.key in decisions)
    held = [one for one in decisions.values() if one.p_right < 1 and one.label_after is not None]
    doubted = sum(1 - one.p_right for one in held if gallery.annotations.is_present(one.key))
    left = max(issues.noise_rate * issues.checked - decided, 0.0) + doubted
    share, low, high = issues.open_share or (0.0, 0.0, 0.0)
    return (left, left * low / share, left * high / share) if share > 0 else (left, left, left)


def without_dropped_copies(issues: LabelIssues, gallery: Gallery) -> LabelIssues:
    """Label issues without dropped near-duplicates, which are not counted."""
    copies = gallery.annotations.dropped_copies
    if not copies:
        return issues
    left_out = [issue for issue in issues.items if issue.id in copies]
    labelled = [number for number, (label, _) in copies.items() if label is not None]
    checked = issues.checked - int(np.isin(labelled, gallery.without_decisions.ids).sum())
    errors = issues.noise_rate * issues.checked - sum(one.p_error for one in left_out if one.kind != PROPOSAL)
    return collect_issues(
        [issue for issue in issues.items if issue.id not in copies],
        checked=max(checked, 0),
        errors=max(errors, 0.0),
        confused_classes=issues.confused_classes,
        base=issues,
    )
