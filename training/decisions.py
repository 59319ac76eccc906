"""What a person decided about labels of an audit: read from the file that the audit's page saves."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from index.errors import InputError
from index.images import printable_path
from training.audit_report import KEEP, NO_CLASS, RELABEL, AuditReport
from training.run_folder import LabelledImage

logger = logging.getLogger(__name__)

DECISIONS = (KEEP, RELABEL, NO_CLASS)
_COLUMNS = ("path", "sha256", "label", "decision", "new_label")


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of the label of an image: one of `DECISIONS`, and the new label of `relabel` (None for others)."""

    path: str
    sha256: str
    label: str
    decision: str
    new_label: str | None


Decisions = Mapping[tuple[str, str], Decision]
"""By (sha256, label): a decision holds for every copy of the image with that label, wherever it lies."""


def read_decisions(path: Path, *, images: Sequence[LabelledImage]) -> Decisions:
    """A CSV file of path,sha256,label,decision,new_label.

    Decisions about other images, or about labels that the run does not train with any more, are left out with a
    warning: a file that was used for an earlier run may be used again. A new label that no image has is taken, with a
    warning: it may be a new class, or a slip.

    Raises:
        InputError: no such file, other columns, or a line that says nothing clear.
    """
    shown = printable_path(str(path))
    known = {(image.sha256, image.used) for image in images}
    classes = {image.used for image in images}
    decisions: dict[tuple[str, str], Decision] = {}
    unknown: list[str] = []
    for line, row in _read_rows(path):
        where = f"{shown}, line {line}"
        decision = _read_decision(row, where=where)
        key = (decision.sha256, decision.label)
        if key not in known:
            unknown.append(where)
            continue
        before = decisions.setdefault(key, decision)
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


def _read_decision(row: Mapping[str, str], *, where: str) -> Decision:
    decision, new = row["decision"], row["new_label"].strip()
    if decision not in DECISIONS:
        raise InputError(f"{where}: the decision must be one of {', '.join(DECISIONS)}, found {decision!r}")
    if decision == RELABEL and not new:
        raise InputError(f"{where}: {RELABEL} needs a new_label, found none")
    if decision == RELABEL and new == row["label"]:
        decision = KEEP
    return Decision(row["path"], row["sha256"], row["label"], decision, new if decision == RELABEL else None)


def override_verdicts(report: AuditReport, decisions: Decisions) -> tuple[AuditReport, frozenset[int]]:
    """The report with what was decided in the place of its own verdicts, and the rows decided about."""
    images, decided = list(report.images), []
    for row, image in enumerate(images):
        decision = decisions.get((image.sha256, image.label))
        if decision is not None:
            images[row] = replace(image, verdict=decision.decision, new_label=decision.new_label)
            decided.append(row)
    return replace(report, images=tuple(images)), frozenset(decided)
