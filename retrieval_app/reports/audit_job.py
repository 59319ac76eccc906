"""A whole audit as the command does it: checks first, then the long work, then the files."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from index.labels.decision_file import read_decisions
from index.labels.decisions import LabelDecision, LabelKey
from retrieval_app.reports.audit_page import write_audit_page
from training.audit.audit_files import check_audit_folder, write_audit_tables
from training.audit.cleaned_labels import CleanedLabels, check_label_target, write_cleaned_labels
from training.audit.report import AuditReport, override_verdicts
from training.audit.run_audit import StepProgress, audit_labels, read_images
from training.data.datasets import require_outside
from training.options.machine import Machine
from training.run.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """What came of it.

    Attributes:
        report: with a person's decisions in the place of verdicts.
        files: written into the audit's folder.
        decisions: the file they came from, None without.
        decided: how many images they are about.
        cleaned: the label file, None without.
        seconds: that all of it took.
        trained: the config.json of the run, for the command that trains again.
    """

    report: AuditReport
    files: tuple[Path, ...]
    decisions: Path | None
    decided: int
    cleaned: CleanedLabels | None
    seconds: float
    trained: dict[str, Any] = field(repr=False)


def run_audit(
    folder: Path,
    out: Path,
    *,
    decisions: Path | None,
    apply_to: Path | None,
    limit: int,
    machine: Machine,
    progress: StepProgress,
) -> AuditOutcome:
    """Audit a run's labels and write what was found, as `retrieval_app.reports.public.audit` says.

    Raises:
        RunError: no run, one that is not ready, or images that are not what they were.
        InputError: decisions, a folder or a label file that cannot be used as given.
    """
    started = time.perf_counter()
    run = RunFolder.open(folder)
    document = run.read_json("config.json")
    for path, flag in ((out, "--out"), (machine.cache, "--cache")):
        require_outside(path, data=Path(document["data"]), flag=flag)
    check_audit_folder(out)
    if apply_to is not None:
        check_label_target(apply_to, run=run)
    saved = out / "decisions.csv"
    source = decisions or (saved if saved.exists() else None)
    made: dict[LabelKey, LabelDecision] = {}
    if source is not None:
        made = read_decisions(source, known={(image.sha256, image.used) for image in read_images(run)})
    report = audit_labels(run, machine=machine, progress=progress)
    decided_report, decided = override_verdicts(report, made)
    tables = write_audit_tables(decided_report, out)
    page = out / "audit.html"
    write_audit_page(
        report, page, limit=limit, decisions=made.values(), progress=lambda *done: progress("page", *done)
    )
    cleaned = None
    if apply_to is not None:
        cleaned = write_cleaned_labels(decided_report, apply_to, decided=decided)
    return AuditOutcome(
        decided_report,
        files=(*tables, page),
        decisions=source,
        decided=len(decided),
        cleaned=cleaned,
        seconds=time.perf_counter() - started,
        trained=document,
    )
