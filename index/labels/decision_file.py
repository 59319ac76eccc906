"""The file of decisions about labels that the audit's page saves: path,sha256,label,decision,new_label."""

from __future__ import annotations

import csv
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from index.errors import InputError
from index.labels.decisions import CHANGE, DECISIONS, KEEP, LabelDecision, LabelKey
from index.text import printable_path

logger = logging.getLogger(__name__)

_COLUMNS = ("path", "sha256", "label", "decision", "new_label")


def read_decisions(path: Path, *, known: Collection[LabelKey]) -> dict[LabelKey, LabelDecision]:
    """Decisions by what they hold for: every image of these bytes with that label, wherever it lies.

    Decisions about others than the known ones are left out with a warning: a file that was used for an earlier run may
    be used again. A new label that no image has is taken, with a warning: it may be a new class, or a slip.

    Raises:
        InputError: no such file, other columns, or a line that says nothing clear.
    """
    shown = printable_path(str(path))
    classes = {label for _, label in known}
    decisions: dict[LabelKey, LabelDecision] = {}
    unknown: list[str] = []
    for line, row in _read_rows(path):
        where = f"{shown}, line {line}"
        decision = _read_decision(row, where=where)
        if decision.key not in known:
            unknown.append(where)
            continue
        before = decisions.setdefault(decision.key, decision)
        if (before.decision, before.new_label) != (decision.decision, decision.new_label):
            raise InputError(
                f"{where}: {printable_path(decision.path)} as {decision.label!r} is decided otherwise above; keep one"
            )
        if decision.new_label is not None and decision.new_label not in classes:
            logger.warning("%s: the new label %r is no class of this run yet", where, decision.new_label)
    if unknown:
        logger.warning(
            "left out, because about images or labels that this run does not have: %d decisions, the first in %s",
            len(unknown), unknown[0],
        )  # fmt: skip
    return decisions


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, values of all columns) of every row that is not empty."""
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such decisions file; the audit's page saves one")
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            missing = [name for name in _COLUMNS if name not in columns]
            if missing:
                raise InputError(
                    f"{shown}: expected a header with the columns {','.join(_COLUMNS)}; lacks {','.join(missing)}"
                )
            for row in rows:
                yield rows.line_num, {name: row[name] or "" for name in _COLUMNS}
    except csv.Error as error:
        raise InputError(f"{shown}: not a readable CSV file: {error}") from error


def _read_decision(row: Mapping[str, str], *, where: str) -> LabelDecision:
    decision, new = row["decision"], row["new_label"].strip()
    if decision not in DECISIONS:
        raise InputError(f"{where}: the decision must be one of {', '.join(DECISIONS)}, found {decision!r}")
    if decision == CHANGE and not new:
        raise InputError(f"{where}: {CHANGE} needs a new_label, found none")
    if decision == CHANGE and new == row["label"]:
        decision = KEEP
    return LabelDecision(
        row["sha256"], row["label"], decision, new if decision == CHANGE else None, path=row["path"]
    )
