"""Label issues of a gallery: labels that its vectors contradict, also after people decided about some."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from index.arrays import UNLABELLED, Doubles
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import P_RIGHT, LabelDecision, LabelKey
from index.labels.issues import MIN_P_ERROR, LabelIssue, LabelIssues, collect_issues, list_label_issues
from index.labels.kinds import KINDS, PROPOSAL
from index.labels.label_errors import find_label_errors
from index.labels.simulated_noise import ScoreCalibration
from index.progress import Progress, no_progress
from index.text import printable_path
from retrieval_app.reports.duplicates_report import DuplicateReport, find_duplicate_groups

_RANKS = (1, 2, 3)
Decisions: TypeAlias = Mapping[LabelKey, LabelDecision]
"""Label decisions that hold, by what they hold for."""
FindIds: TypeAlias = Callable[[], Mapping[int, LabelKey]]
"""Gives the images that decisions are about, by id; several may be one file."""


def find_label_issues(
    gallery: Gallery, progress: Progress = no_progress, *, duplicates: DuplicateReport | None = None
) -> LabelIssues:
    """Label issues: the labels that the gallery's vectors contradict, and proposals for images without a label.

    Args:
        duplicates: of the gallery; None finds them first.
    """
    vectors, labels, ids, names = gallery.for_label_errors().labelled_vectors()
    rows, without = np.flatnonzero(labels != UNLABELLED), np.flatnonzero(labels == UNLABELLED)
    groups = (duplicates or find_duplicate_groups(gallery)).groups_of(ids[rows])
    found = list_label_issues(
        vectors[rows],
        labels[rows],
        ids=ids[rows],
        names=names,
        groups=groups,
        p_right=read_p_right(gallery)[rows],
        unlabelled=(vectors[without], ids[without]),
        progress=progress,
    )
    return replace(found, is_lower_bound=gallery.knows_labels)


def apply_decisions(
    gallery: Gallery,
    decided: Mapping[int, LabelDecision],
    *,
    base: LabelIssues,
    decisions: int,
    before: ScoreCalibration | None,
    duplicates: DuplicateReport,
    progress: Progress = no_progress,
) -> tuple[LabelIssues, ScoreCalibration]:
    """Label issues after decisions: detection runs again, with the labels that people decided as right.

    Labels that a machine decided take part as they were given.

    Args:
        decided: decisions by image id.
        base: the label issues from before the decisions.
        decisions: their number.
        before: calibration from before the decisions; None computes it first, which takes as long again.
        duplicates: of the gallery.

    Returns:
        The label issues, in which those with decisions stay as they were, and the calibration.
    """
    vectors, given, ids, names = gallery.for_label_errors().labelled_vectors()
    p_right = read_p_right(gallery)
    if before is None:
        rows = np.flatnonzero(given != UNLABELLED)
        groups = duplicates.groups_of(ids[rows])
        before = find_label_errors(
            vectors[rows], given[rows], count=len(names), groups=groups, p_right=p_right[rows], progress=progress
        ).calibration
    numbers = {name: number for number, name in enumerate(names)}
    now, (is_left_out, is_decided) = given.copy(), np.zeros((2, len(given)), dtype=bool)
    place_of = {number: place for place, number in enumerate(ids.tolist())}
    for place, decision in ((place_of[number], one) for number, one in decided.items() if number in place_of):
        is_decided[place] = True
        if decision.source == "bulk" or decision.p_right < 1:
            continue  # a machine that learns from its own decisions becomes too sure of what it left
        if decision.label_after is None:
            is_left_out[place] = True
        else:
            now[place] = numbers.setdefault(decision.label_after, len(numbers))
            p_right[place] = 1.0
    rows = np.flatnonzero((now != UNLABELLED) & ~is_left_out)
    without = np.flatnonzero((now == UNLABELLED) & ~is_left_out)
    used, labels = np.unique(now[rows], return_inverse=True)
    all_names = list(numbers)
    found = list_label_issues(
        vectors[rows],
        labels.astype(np.int64),
        ids=ids[rows],
        names=[all_names[number] for number in used],
        groups=duplicates.groups_of(ids[rows]),
        p_right=p_right[rows],
        decided=is_decided[rows],
        before=before,
        unlabelled=(vectors[without], ids[without]),
        progress=progress,
    )
    # What was decided stays listed as the issue that it was decided for.
    kept = [issue for issue in base.items if issue.id in decided]
    items = [*kept, *(issue for issue in found.items if issue.id not in decided)]
    items.sort(key=lambda issue: (issue.kind == PROPOSAL, -issue.p_error))
    # What is open counts as no more than before: decisions never raise the estimate.
    errors = sum(issue.p_error for issue in kept if issue.kind != PROPOSAL) + found.noise_rate * found.checked
    errors = min(errors, base.noise_rate * base.checked)
    updated = collect_issues(items, checked=base.checked, errors=errors, confused_classes=found.confused_classes)
    return _continue(updated, base, decisions=decisions), before


def _continue(updated: LabelIssues, base: LabelIssues, *, decisions: int) -> LabelIssues:
    """With what decisions do not change."""
    return replace(
        updated,
        is_lower_bound=base.is_lower_bound,
        decisions=decisions,
        classes=base.classes,
        look_alikes=base.look_alikes,
    )


def read_p_right(gallery: Gallery) -> Doubles:
    """(N,) probability that each given label is right, by the column `p_right` of its source; NaN without one."""
    with gallery.catalog() as catalog:
        found = catalog.read_numbers(P_RIGHT)
    return np.array([found.get(number, np.nan) for number in gallery.ids.tolist()], dtype=np.float64).clip(0, 1)


def count_errors_left(
    gallery: Gallery, issues: LabelIssues, keys: Mapping[int, LabelKey], decisions: Decisions
) -> float:
    """Estimated number of wrong labels that are left: of open labels, and of those that no person looked at.

    Args:
        keys: of the images with issues, by id.
    """
    decided = sum(issue.p_error for issue in issues.errors if keys.get(issue.id) in decisions)
    held = [one for one in decisions.values() if one.p_right < 1 and one.label_after is not None]
    doubted = sum(1 - one.p_right for one in held if gallery.has_decided(one.key))
    return max(issues.noise_rate * issues.checked - decided, 0.0) + doubted


def without_dropped_copies(issues: LabelIssues, gallery: Gallery) -> LabelIssues:
    """Label issues without the near-duplicates that people dropped, which count no more."""
    copies = gallery.dropped_copies
    if not copies:
        return issues
    left_out = [issue for issue in issues.items if issue.id in copies]
    labelled = [number for number, (label, _) in copies.items() if label is not None]
    checked = issues.checked - int(np.isin(labelled, gallery.without_decisions.ids).sum())
    errors = issues.noise_rate * issues.checked - sum(one.p_error for one in left_out if one.kind != PROPOSAL)
    found = collect_issues(
        [issue for issue in issues.items if issue.id not in copies],
        checked=max(checked, 0),
        errors=max(errors, 0.0),
        confused_classes=issues.confused_classes,
    )
    return _continue(found, issues, decisions=issues.decisions)


def read_audit(path: Path, gallery: Gallery) -> LabelIssues:
    """Label issues that an audit found, of the members of a gallery with the same bytes and label.

    An image whose bytes are not in the gallery, or have another label there, is left out.

    Args:
        path: the folder that `retrieval audit` wrote, or its audit.csv.
    """
    table = path / "audit.csv" if path.is_dir() else path
    rows = read_audit_table(table, columns=("path", "sha256", "label", "p_error", "p_none", "verdict"))
    with gallery.catalog() as catalog:
        members = [row for row in catalog.rows(status="indexed") if row.label is not None]
    by_content = {(row.sha256 or "", row.label or ""): row for row in reversed(members)}  # the first of equals
    by_path = {row["path"]: by_content.get((row["sha256"], row["label"])) for row in rows}
    labels = {row.id: row.label or "" for row in members}
    checked, errors, items = 0, 0.0, []
    for row in rows:
        member = by_path[row["path"]]
        if member is None:
            continue
        p_error = read_number(row, "p_error", table)
        checked, errors = checked + 1, errors + p_error
        if p_error >= MIN_P_ERROR:
            items.append(_read_issue(row, member, by_path, labels=labels, table=table))
    items.sort(key=lambda issue: -issue.p_error)
    found = collect_issues(items, checked=checked, errors=errors)
    return replace(found, classes=len({row["label"] for row in rows}), look_alikes=_read_look_alikes(table))


def _read_look_alikes(table: Path) -> float | None:
    """`look_alikes` of the audit, of the summary beside its table; None without one."""
    summary = table.with_name("summary.json")
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))["look_alikes"]
        return float(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{printable_path(str(summary))}: no summary of an audit: {error!r}; audit again") from error


def read_audit_table(table: Path, *, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of an audit.csv, which has some columns at least; cells that are missing are empty."""
    shown = printable_path(str(table))
    try:
        with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{shown}: no table of an audit: it lacks the columns {', '.join(missing)}")
            return [{name: value or "" for name, value in row.items() if isinstance(name, str)} for row in reader]
    except OSError as error:
        advice = "give the folder that `retrieval audit` wrote"
        raise InputError(f"{shown}: the audit cannot be read: {error.strerror}; {advice}") from error
    except csv.Error as error:
        raise InputError(f"{shown}: the audit cannot be read: {error}") from error


def read_number(row: Mapping[str, str], name: str, table: Path) -> float:
    """A number of a row of an audit's table."""
    try:
        return float(row.get(name, ""))
    except ValueError as error:
        shown = printable_path(str(table))
        raise InputError(
            f"{shown}: {name} of {printable_path(row['path'])} is {row.get(name)!r}, no number; audit again"
        ) from error


def read_suggestions(row: Mapping[str, str], table: Path) -> tuple[tuple[str, float], ...]:
    """(label, probability) of the most probable other labels, of a row of an audit's table."""
    names = {rank: row.get(f"suggestion_{rank}") for rank in _RANKS}
    return tuple(
        (name, read_number(row, f"suggestion_probability_{rank}", table))
        for rank, name in names.items()
        if name and name != row["label"]
    )


def _read_issue(
    row: Mapping[str, str],
    member: CatalogRow,
    by_path: Mapping[str, CatalogRow | None],
    *,
    labels: Mapping[int, str],
    table: Path,
) -> LabelIssue:
    sides: dict[str, list[tuple[int, float]]] = {"agreeing": [], "disagreeing": []}
    for side, found in sides.items():
        for rank in _RANKS:
            other = by_path.get(row.get(f"{side}_{rank}", ""))
            if other is not None:
                found.append((other.id, read_number(row, f"{side}_cosine_{rank}", table)))
    return LabelIssue(
        id=member.id,
        label=row["label"],
        p_error=read_number(row, "p_error", table),
        suggestions=read_suggestions(row, table),
        p_none=read_number(row, "p_none", table),
        kind=next((kind for kind in KINDS if kind == row.get("kind")), "wrong_label"),
        verdict=row["verdict"],
        agreeing=tuple(sides["agreeing"]),
        disagreeing=tuple((number, score, labels[number]) for number, score in sides["disagreeing"]),
    )
