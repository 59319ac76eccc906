"""Tables of label issues: audit.csv, the export of `retrieval labels`, and reading them."""

import csv
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from index.errors import InputError
from index.labels.decisions import P_RIGHT
from index.labels.issues import NEIGHBOURS, LabelIssue, LabelIssues
from index.labels.kinds import KINDS
from index.labels.verdicts import Verdict
from index.text import printable_path

Cell = str | float | None
_RANKS = range(1, NEIGHBOURS + 1)
COLUMNS = (
    *("path", "sha256", "label", "p_error", "p_none", "suggested", "p_suggested"),
    *(f"suggestion{name}_{rank}" for rank in _RANKS for name in ("", "_probability")),
    *("kind", "verdict", "decision", "new_label", P_RIGHT),
)
"""Columns of every table; the last three are of the decision."""
_REQUIRED = ("path", "sha256", "label", "p_error", "p_none", "verdict")


def describe_row(issue: LabelIssue) -> dict[str, Cell]:
    cells: dict[str, Cell] = dict.fromkeys(COLUMNS)
    cells |= {
        "path": issue.path,
        "sha256": issue.sha256,
        "label": issue.label or "",
        "p_error": issue.p_error,
        "p_none": issue.p_none,
        "suggested": issue.suggested,
        "p_suggested": issue.p_suggested,
        "kind": issue.kind,
        "verdict": issue.verdict,
    }
    for rank, (label, probability) in zip(_RANKS, issue.suggestions, strict=False):
        cells |= {f"suggestion_{rank}": label, f"suggestion_probability_{rank}": probability}
    if (made := issue.decision) is not None:
        cells |= {"decision": made.decision, "new_label": made.new_label, P_RIGHT: made.p_right}
    return cells


def read_issues(table: Path) -> LabelIssues:
    """All labels of an audit.csv, without its decisions and neighbours; ids are the rows, from 0 on."""
    rows = _read_rows(table)
    items = tuple(
        LabelIssue(
            id=number,
            label=row["label"],
            p_error=_read_number(row, "p_error", table),
            suggestions=tuple(
                (label, _read_number(row, f"suggestion_probability_{rank}", table))
                for rank in _RANKS
                if (label := row.get(f"suggestion_{rank}"))
            ),
            p_none=_read_number(row, "p_none", table),
            kind=next((kind for kind in KINDS if kind == row.get("kind")), None),
            verdict=cast(Verdict, row["verdict"]),
            sha256=row["sha256"],
            path=os.path.abspath(row["path"]),
        )
        for number, row in enumerate(rows)
    )
    by_label = defaultdict[str, list[float]](list)
    for issue in items:
        by_label[issue.label or ""].append(issue.p_error)
    return LabelIssues(
        items,
        checked=len(items),
        noise_rate=sum(issue.p_error for issue in items) / max(len(items), 1),
        classes=tuple((label, len(wrong), sum(wrong) / len(wrong)) for label, wrong in by_label.items()),
    )


def _read_rows(table: Path) -> list[dict[str, str]]:
    """Rows of a table; missing cells are empty."""
    try:
        with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"no table of an audit: it lacks the columns {', '.join(missing)}", at=table)
            return [{name: value or "" for name, value in row.items() if isinstance(name, str)} for row in reader]
    except OSError as error:
        advice = "give the folder that `retrieval audit` wrote"
        raise InputError(f"the audit cannot be read: {error.strerror}; {advice}", at=table) from error
    except csv.Error as error:
        raise InputError(f"the audit cannot be read: {error}", at=table) from error


def _read_number(row: Mapping[str, str], name: str, table: Path) -> float:
    try:
        return float(row.get(name, ""))
    except ValueError as error:
        problem = f"{name} of {printable_path(row['path'])} is {row.get(name)!r}, no number; audit again"
        raise InputError(problem, at=table) from error
