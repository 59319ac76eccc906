"""Label-error probabilities of a gallery or of a finished audit, for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from index.arrays import UNLABELLED, Floats
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision, LabelKey, read_decisions
from index.labels.judge import judge_labels, judge_twice
from index.text import printable_path
from retrieval_app.insights.label_issues import read_audit_table, read_number, read_suggestions
from retrieval_app.reports.duplicates_report import find_duplicate_groups
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import Subject, read_all_subjects

DECISIONS_NAME = "decisions.csv"


@dataclass(frozen=True, slots=True)
class JudgedLabel:
    """A label, its probability (0..1) of an error, and (label, probability) of other labels, best first."""

    subject: Subject
    wrong: float
    suggestions: tuple[tuple[str, float], ...]

    @property
    def label(self) -> str:
        """As given."""
        return self.subject.label or ""


@dataclass(frozen=True, slots=True)
class JudgedLabels:
    """Labels with their error probabilities, the likeliest to be wrong first.

    Attributes:
        classes: sorted names of all labels.
        decisions: what people decided so far.
        confidences: gives (N, C) float32 in the order of the items, rows sum to 1; None where they are not known.
        is_lower_bound: as of `index.labels.issues.LabelIssues`.
    """

    items: tuple[JudgedLabel, ...]
    classes: tuple[str, ...]
    decisions: Mapping[LabelKey, LabelDecision]
    confidences: Callable[[], Floats] | None = field(default=None, compare=False)
    is_lower_bound: bool = False


def judge_gallery(gallery: Gallery) -> JudgedLabels:
    """Label-error detection on a gallery's given labels; labels that one picture alone has are left out.

    Raises:
        InputError: fewer than two labels can be checked.
    """
    gallery = gallery.as_given
    vectors, labels, ids, names = gallery.judging_labels().labelled_vectors()
    rows = np.flatnonzero(labels != UNLABELLED)
    groups = find_duplicate_groups(gallery).groups_of(ids[rows])
    pictures = np.bincount(np.unique(np.stack([labels[rows], groups]), axis=1)[0], minlength=len(names))
    judged = pictures[labels[rows]] > 1
    rows, groups = rows[judged], groups[judged]
    used, numbers = np.unique(labels[rows], return_inverse=True)
    if len(used) < 2:
        raise InputError(
            f"{printable_path(gallery.name)}: {len(used)} labels with two different pictures or more, "
            "expected at least 2; build it from images of more labels"
        )
    classes = tuple(names[number] for number in used.tolist())
    features, count = vectors[rows], len(classes)
    found = judge_labels(features, numbers, count=count, groups=groups)
    subjects = {subject.image_id: subject for subject in read_all_subjects(gallery)}
    order = np.argsort(-found.wrong, kind="stable")
    items = tuple(
        JudgedLabel(
            subjects[int(ids[rows[row]])],
            float(found.wrong[row]),
            tuple((classes[n], float(share)) for n, share in found.others(row, label=int(numbers[row]))),
        )
        for row in order.tolist()
    )
    decisions = ReviewStore.of_gallery(gallery.path).label_decisions()
    return JudgedLabels(
        items,
        classes,
        decisions,
        lambda: judge_twice(features, numbers, count=count, groups=groups)[order],
        is_lower_bound=gallery.knows_labels,
    )


def read_judged(folder: Path) -> JudgedLabels:
    """Label-error probabilities that a finished audit wrote.

    Raises:
        InputError: there is no audit, or its table cannot be read.
    """
    table = folder / "audit.csv"
    items = tuple(
        JudgedLabel(
            Subject(number, row["sha256"], row["label"], os.path.abspath(row["path"])),
            read_number(row, "wrong", table),
            read_suggestions(row, table),
        )
        for number, row in enumerate(read_audit_table(table, columns=("path", "sha256", "label", "wrong")))
    )
    known = {item.subject.key for item in items}
    saved = folder / DECISIONS_NAME
    decisions = read_decisions(saved, known=known) if saved.exists() else {}
    return JudgedLabels(items, tuple(sorted({item.label for item in items})), decisions)
