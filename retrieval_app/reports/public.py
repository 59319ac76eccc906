"""Audit of labels for Python programs. Loads nothing heavy before it works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from index.config_fields import as_path
from index.errors import InputError, naming_extras
from index.threads import usable_cores
from training.public import default_cache

if TYPE_CHECKING:
    from retrieval_app.reports.audit_job import AuditOutcome

StepProgress = Callable[[str, int, int], None]


def audit(
    run: str | Path,
    out: str | Path | None = None,
    *,
    decisions: str | Path | None = None,
    apply_to: str | Path | None = None,
    limit: int = 1000,
    cache: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    progress: StepProgress = lambda *_: None,
) -> AuditOutcome:
    """Say which labels of a run look wrong, the most suspicious first, as tables and as a page to go through them.

    Args:
        run: folder of a finished training run.
        out: folder of the audit; None is `audit` in the run.
        decisions: file of what a person decided on the page, which goes before the verdicts; None takes decisions.csv
            of the folder, where there is one.
        apply_to: label file to write with the verdicts applied, which `train` reads.
        limit: images on the page.
        cache: folder of backbone features; None is your cache folder.
        device: `auto`, `cpu` or `cuda`.
        workers: threads that decode; None is one for each core.
        progress: called with (step, done, total).

    Returns:
        The report with a row for each image, and the files that were written.

    Raises:
        RunError: no run, or one that is not finished.
        InputError: images that changed since, or a folder or file that cannot be used.
    """
    if not isinstance(limit, int) or limit < 1:
        raise InputError(f"limit must be a whole number of at least 1, got {limit!r}")
    with naming_extras("auditing"):
        from retrieval_app.reports.audit_job import run_audit
        from training.options.machine import Machine, resolve_device

    folder = as_path(run, "run")
    machine = Machine(
        cache=default_cache() if cache is None else as_path(cache, "cache"),
        device=resolve_device(device),
        workers=workers or usable_cores(),
    )
    return run_audit(
        folder,
        folder / "audit" if out is None else as_path(out, "out"),
        decisions=None if decisions is None else as_path(decisions, "decisions"),
        apply_to=None if apply_to is None else as_path(apply_to, "apply_to"),
        limit=limit,
        machine=machine,
        progress=progress,
    )
