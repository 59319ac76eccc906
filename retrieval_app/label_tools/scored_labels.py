"""Labels of a gallery or an audit with the probability that each is wrong, for `retrieval labels`."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import UNLABELLED, Floats
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import P_RIGHT, LabelDecision, LabelKey, read_decisions
from index.labels.group_decisions import Subject
from index.labels.issues import MIN_P_ERROR, LabelIssues, collect_issues
from index.labels.kinds import PROPOSAL
from index.labels.label_errors import find_label_errors, two_pass_confidences
from index.progress import Progress, no_progress
from index.text import printable_path
from retrieval_app.insights import label_issues
from retrieval_app.insights.label_issues import read_audit_table, read_number, read_suggestions
from retrieval_app.reports.duplicates_report import DuplicateReport, find_duplicate_groups
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_decided_ids, read_all_subjects

DECISIONS_NAME = "decisions.csv"
_SUGGESTIONS = 3
# column -> its type in Parquet
COLUMNS = (
    {"path": "string", "sha256": "string", "label": "string", "p_error": "float64", "suggested": "string"}
    | {
        f"suggestion{name}_{rank}": kind
        for rank in range(1, _SUGGESTIONS + 1)
        for name, kind in (("", "string"), ("_probability", "float64"))
    }
    | {"decision": "string", "new_label": "string", P_RIGHT: "float64"}
)


@dataclass(frozen=True, slots=True)
class ScoredLabel:
    """A label, the probability (0..1) that it is wrong, (label, probability) of others, best first, and its kind.

    Of an image without a label it is the probability that the first of the others is right.
    """

    subject: Subject
    p_error: float
    suggestions: tuple[tuple[str, float], ...]
    kind: str | None = None

    @property
    def label(self) -> str:
        """As given; empty without one."""
        return self.subject.label or ""


@dataclass(frozen=True, slots=True)
class ScoredLabels:
    """Labels with the probability that each is wrong, the most probable errors first; then images without a label.

    Attributes:
        classes: sorted names of all labels.
        decisions: by people, so far.
        confidences: computes (N, C) float32 of the N items with a label, rows sum to 1; None for an audit.
        is_lower_bound: as in `index.labels.issues.LabelIssues`.
    """

    items: tuple[ScoredLabel, ...]
    classes: tuple[str, ...]
    decisions: Mapping[LabelKey, LabelDecision]
    confidences: Callable[[], Floats] | None = field(default=None, compare=False)
    is_lower_bound: bool = False

    def rows(self) -> Iterator[dict[str, Any]]:
        """A flat mapping with the keys of `COLUMNS` for each label."""
        for item in self.items:
            decided = self.decisions.get(item.subject.key)
            row: dict[str, Any] = dict.fromkeys(COLUMNS)
            row |= {
                "path": item.subject.path,
                "sha256": item.subject.sha256,
                "label": item.label,
                "p_error": item.p_error,
            }
            for rank, (label, probability) in enumerate(item.suggestions[:_SUGGESTIONS], start=1):
                row |= {f"suggestion_{rank}": label, f"suggestion_probability_{rank}": probability}
            row["suggested"] = row["suggestion_1"]
            if decided is not None:
                row |= {"decision": decided.decision, "new_label": decided.new_label, P_RIGHT: decided.p_right}
            yield row


def list_issues(place: Path) -> tuple[LabelIssues, list[dict[str, Any]], float]:
    """Label issues as the API lists them (of an audit, their figures alone), their rows, and what is left of errors.

    Rows have `COLUMNS` and `kind`; what is left is the estimated number of wrong labels after the decisions.
    """
    if (place / "audit.csv").exists():
        audited = read_audited(place)
        errors = [item.p_error for item in audited.items]
        issues = collect_issues([], checked=len(errors), errors=sum(errors))
        left = sum(item.p_error for item in audited.items if item.subject.key not in audited.decisions)
        left += sum(1 - one.p_right for one in audited.decisions.values() if not one.leaves_out)
        scored = replace(audited, items=tuple(item for item in audited.items if item.p_error >= MIN_P_ERROR))
    else:
        now = find_current_issues(Gallery.open(place))
        issues, subjects = now.issues, now.subjects
        items = [ScoredLabel(subjects[one.id], one.p_error, one.suggestions, one.kind) for one in issues.items]
        scored = ScoredLabels(tuple(items), (), now.decisions)
        keys = {number: subject.key for number, subject in subjects.items()}
        left = label_issues.count_errors_left(now.gallery, issues, keys, now.decisions)
    return issues, [{**row, "kind": item.kind} for row, item in zip(scored.rows(), scored.items, strict=True)], left


@dataclass(frozen=True, slots=True)
class CurrentIssues:
    """The label issues of a gallery after its decisions, as the Labels view has them."""

    gallery: Gallery
    issues: LabelIssues
    duplicates: DuplicateReport
    decisions: Mapping[LabelKey, LabelDecision]
    subjects: Mapping[int, Subject]


def find_current_issues(opened: Gallery, progress: Progress = no_progress) -> CurrentIssues:
    """Detect the label issues of a gallery, without a server."""
    gallery = opened.without_decisions
    duplicates, decisions = find_duplicate_groups(gallery), ReviewStore.of_gallery(gallery.path).label_decisions()
    subjects = {subject.image_id: subject for subject in read_all_subjects(gallery)}
    issues = label_issues.find_label_issues(gallery, progress, duplicates=duplicates)
    if not issues.checked:
        raise InputError(f"{printable_path(gallery.name)}: no label can be checked; build it from more images")
    if decisions:
        keys = {number: key for key, number in find_decided_ids(gallery, decisions.values()).items()}
        keys |= {one.id: key for one in issues.items if (key := subjects[one.id].key) in decisions}
        issues, _ = label_issues.apply_decisions(
            gallery,
            {number: decisions[key] for number, key in keys.items()},
            base=issues,
            decisions=len(decisions),
            before=None,
            duplicates=duplicates,
        )
    issues = label_issues.without_dropped_copies(issues, opened)
    return CurrentIssues(opened, issues, duplicates, decisions, subjects)


def score_gallery(gallery: Gallery) -> ScoredLabels:
    """Label-error detection on a gallery's given labels; labels of one image, near-duplicates apart, are left out."""
    gallery = gallery.without_decisions
    vectors, labels, ids, names = gallery.for_label_errors().labelled_vectors()
    rows = np.flatnonzero(labels != UNLABELLED)
    groups = find_duplicate_groups(gallery).groups_of(ids[rows])
    images = np.bincount(np.unique(np.stack([labels[rows], groups]), axis=1)[0], minlength=len(names))
    can_be_checked = images[labels[rows]] > 1
    rows, groups = rows[can_be_checked], groups[can_be_checked]
    used, numbers = np.unique(labels[rows], return_inverse=True)
    if len(used) < 2:
        raise InputError(
            f"{printable_path(gallery.name)}: {len(used)} labels with two different images or more, "
            "expected at least 2; build it from images of more labels"
        )
    classes = tuple(names[number] for number in used.tolist())
    features, count = vectors[rows], len(classes)
    without = np.flatnonzero(labels == UNLABELLED)
    found = find_label_errors(features, numbers, count=count, groups=groups, unlabelled=vectors[without])
    subjects = {subject.image_id: subject for subject in read_all_subjects(gallery)}
    order = np.argsort(-found.p_error, kind="stable")
    items = tuple(
        ScoredLabel(
            subjects[int(ids[rows[row]])],
            float(found.p_error[row]),
            tuple((classes[n], float(p)) for n, p in found.others(row, label=int(numbers[row]))),
        )
        for row in order.tolist()
    )
    if found.proposals is not None:
        best, probabilities = found.proposals.best, found.proposals.probabilities
        items += tuple(
            ScoredLabel(
                subjects[int(ids[without[row]])],
                float(probabilities[row, 0]),
                tuple(
                    (classes[n], p) for n, p in zip(best[row].tolist(), probabilities[row].tolist(), strict=True) if p
                ),
                PROPOSAL,
            )
            for row in np.argsort(-probabilities[:, 0], kind="stable").tolist()
        )
    decisions = ReviewStore.of_gallery(gallery.path).label_decisions()
    return ScoredLabels(
        items,
        classes,
        decisions,
        lambda: two_pass_confidences(features, numbers, count=count, groups=groups)[order],
        is_lower_bound=gallery.knows_labels,
    )


def read_audited(folder: Path) -> ScoredLabels:
    """The labels of a finished audit."""
    table = folder / "audit.csv"
    items = tuple(
        ScoredLabel(
            Subject(number, row["sha256"], row["label"], os.path.abspath(row["path"])),
            read_number(row, "p_error", table),
            read_suggestions(row, table),
            row.get("kind"),
        )
        for number, row in enumerate(read_audit_table(table, columns=("path", "sha256", "label", "p_error")))
    )
    known = {item.subject.key for item in items}
    saved = folder / DECISIONS_NAME
    decisions = read_decisions(saved, known=known) if saved.exists() else {}
    classes = tuple(sorted({item.label for item in items}))
    return ScoredLabels(items, classes, decisions)
