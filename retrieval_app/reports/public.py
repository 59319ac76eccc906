"""Label audit of a run, for Python programs and the command. Imports nothing heavy before it starts."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import as_path, flag_of, make_config
from index.errors import InputError, RunError, missing_imports_as_dependency_errors
from index.progress import StepProgress, no_progress
from index.text import align, printable_path

if TYPE_CHECKING:
    from index.labels.decisions import LabelDecision
    from index.labels.issues import LabelIssues
    from index.labels.verdicts import Verdict
    from training.audit.run_audit import CleanedLabels
    from training.run.run_folder import LabelledImage, RunFolder

logger = logging.getLogger(__name__)
_LISTED = 10  # classes, and pairs of classes
_OF_LABELS = ("path_column", "label_column", "split_column", "protocol", "label_noise")
_MEANINGS: dict[Verdict, str] = {
    "keep": "the label stays",
    "change": "shows another class, which is probable enough",
    "set_aside": "neither the label nor another one is probable enough",
    "drop": "shows none of the classes, or a near-duplicate has a more probable label",
}


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """All labels of a run with the decisions about them, the files of the audit, and the run's config.json."""

    run: Path
    audited: LabelIssues
    files: tuple[Path, ...]
    decisions: Path | None
    cleaned: CleanedLabels | None
    seconds: float
    trained: dict[str, Any] = field(repr=False)

    @property
    def decided(self) -> int:
        """Number of images with a decision."""
        return sum(image.decision is not None for image in self.audited.items)


def audit(
    run: str | Path,
    out: str | Path | None = None,
    *,
    decisions: str | Path | None = None,
    apply_to: str | Path | None = None,
    at_least_right: float = 0.95,
    limit: int = 1000,
    cache: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    progress: StepProgress = no_progress,
) -> AuditOutcome:
    """Label audit of a run: the labels that look wrong, the likeliest first, as tables and as a page to decide on them.

    Args:
        out: folder of the audit; None is `audit` in the run.
        decisions: file of what a person decided on the page, in place of the verdicts; None takes decisions.csv
            of the folder, where there is one.
        apply_to: label file to write with the verdicts applied, which `train` reads.
        at_least_right: the share (0..1) of right labels to expect among those that stay, by which labels are changed or
            set aside.
        limit: images on the page.
        cache: folder of backbone features; None is your cache folder.
        workers: threads that decode; None is one for each core.
        progress: called with (step, done, total).
    """
    if not isinstance(limit, int) or limit < 1:
        raise InputError(f"limit must be a whole number of at least 1, got {limit!r}")
    if not 0.5 <= at_least_right < 1:
        raise InputError(f"at_least_right must be from 0.5 to below 1, got {at_least_right!r}")
    started = time.perf_counter()
    with missing_imports_as_dependency_errors("auditing"):
        from retrieval_app.reports.audit_page import write_audit_page
        from training.audit.run_audit import audit_labels, read_images, write_audit_tables, write_cleaned_labels
        from training.options.machine import Machine

        machine = make_config(Machine, {"cache": cache, "device": device, "workers": workers})
    folder = as_path(run, "run")
    out = folder / "audit" if out is None else as_path(out, "out")
    target = None if apply_to is None else as_path(apply_to, "apply_to")
    opened = _open_run(folder, out=out, target=target, cache=machine.cache)
    saved = out / "decisions.csv"
    source = as_path(decisions, "decisions") if decisions is not None else saved if saved.exists() else None
    made = [] if source is None else _read_decisions(source, read_images(opened))
    audited = audit_labels(opened, machine=machine, at_least_right=at_least_right, progress=progress)
    audited = audited.with_decisions({one.key: one for one in made})
    tables, page = write_audit_tables(audited, out, run=folder), out / "audit.html"
    write_audit_page(audited, page, run=folder, limit=limit, progress=partial(progress, "page"))
    cleaned = None if target is None else write_cleaned_labels(audited, target)
    seconds, trained = time.perf_counter() - started, opened.read_json("config.json")
    return AuditOutcome(folder, audited, (*tables, page), source, cleaned, seconds, trained)


def _open_run(folder: Path, *, out: Path, target: Path | None, cache: Path) -> RunFolder:
    """Open a run, once all places that an audit writes to can be written."""
    from training.audit.run_audit import check_audit_folder, check_label_target
    from training.data.datasets import require_outside
    from training.run.run_folder import RunFolder

    if folder.is_dir() and not (folder / "config.json").is_file():
        raise RunError(
            f"{printable_path(folder)}: no training run here (config.json is missing); `retrieval train` makes "
            "one. Without a training, `retrieval labels issues GALLERY` lists the labels that look wrong in a gallery, "
            "which `retrieval index build PHOTOS` makes"
        )
    opened = RunFolder.open(folder)
    for path, flag in ((out, "--out"), (cache, "--cache")):
        require_outside(path, data=Path(opened.read_json("config.json")["data"]), flag=flag)
    check_audit_folder(out)
    if target is not None:
        check_label_target(target, run=opened)
    return opened


def _read_decisions(file: Path, images: Sequence[LabelledImage]) -> list[LabelDecision]:
    from index.labels.decision_files import match_decisions
    from index.labels.decisions import ImageRef

    subjects = [ImageRef(row, image.sha256, image.used, str(image.path)) for row, image in enumerate(images)]
    made, unknown = match_decisions(file, subjects, of_page=True)
    if unknown:  # a file that was used for an earlier run may be used again
        logger.warning("left out, because about images or labels that this run does not have: %d decisions", unknown)
    return made


def describe_audit(outcome: AuditOutcome) -> dict[str, Any]:
    """The outcome as one JSON document."""
    from training.audit.run_audit import summarise_audit

    cleaned = outcome.cleaned
    return {
        **summarise_audit(outcome.audited, run=outcome.run),
        "seconds": outcome.seconds,
        "files": [str(path) for path in outcome.files],
        "decisions": None if outcome.decisions is None else {"file": str(outcome.decisions), "images": outcome.decided},
        "cleaned": None if cleaned is None else {**asdict(cleaned), "file": str(cleaned.file)},
    }


def format_audit(outcome: AuditOutcome) -> str:
    """The outcome for people."""
    audited, folder, count = outcome.audited, outcome.files[0].parent, len(outcome.audited.items)
    lines = [
        f"{_shown(outcome.run)}: {count} images of {len(audited.classes)} classes, "
        f"about {audited.noise_rate:.1%} of the labels are wrong ({audited.noise_rate * count:.0f} images)",
        f"every label was checked leave-one-out: from all images but itself; {outcome.seconds:.0f} s in all",
    ]
    if outcome.decisions is not None:
        lines.append(f"decisions about {outcome.decided} images taken from {_shown(outcome.decisions)}")
    images = dict(one[:2] for one in audited.classes)
    pairs = [
        (f"{printable_path(label)} -> {printable_path(shown)}", amount, amount / images[label])
        for label, shown, amount in audited.pairs
    ]
    lines += [
        "",
        *(f"{count:>9}  {name:<10} {_MEANINGS[name]}" for name, count in audited.count_outcomes().items()),
        *_list_noise(("noisiest classes", "images", "wrong"), audited.classes),
        *_list_noise(("labelled -> looks like", "images", "share"), pairs),
        "",
        f"written to {_shown(folder)}: {', '.join(path.name for path in outcome.files)}",
    ]
    return "\n".join([*lines, *_next_lines(outcome)])


def _list_noise(header: tuple[str, str, str], found: Sequence[tuple[str, float, float]]) -> list[str]:
    rows = [(f"  {printable_path(name)}", f"{images:.0f}", f"{share:.1%}") for name, images, share in found[:_LISTED]]
    return ["", *align([header, *rows], right={1, 2})] if rows else []


def _next_lines(outcome: AuditOutcome) -> list[str]:
    from index.labels.verdicts import describe_expected  # loads numpy, which no help text needs

    cleaned, run, folder, audited = outcome.cleaned, outcome.run, outcome.files[0].parent, outcome.audited
    if cleaned is None:
        is_again = Path(outcome.trained["data"]).name == "cleaned.csv"  # which is not replaced
        return [
            f"open {_shown(folder / 'audit.html')}, save what you decide as {_shown(folder / 'decisions.csv')}, then:",
            f"  retrieval audit {_quoted(run)} --apply {'cleaned-again' if is_again else 'cleaned'}.csv",
        ]
    again = run.with_name(run.name + "-cleaned")
    return [
        f"{_shown(cleaned.file)}: {cleaned.images} images, {cleaned.relabelled} of them with a new label; "
        f"{cleaned.set_aside} set aside, {cleaned.left_out} left out"
        f"{'' if outcome.decisions is not None else '; by the verdicts alone, as nothing is decided yet'}",
        describe_expected(cleaned.expected_right, audited.at_least_right, audited.no_promise),
        "train with it, by the options of the run:",
        f"  retrieval train {_quoted(cleaned.file)} {' '.join(_repeat_options(outcome.trained))} "
        f"--out {_quoted(again)}",
    ]


def _repeat_options(trained: Mapping[str, Any]) -> Iterator[str]:
    """The options of a run, without those about reading its labels or adding label noise."""
    options = {name: value for name, value in trained["asked"].items() if name not in _OF_LABELS}
    if trained["val"] is not None:
        options["val"] = trained["val"]
    for name, value in options.items():
        flag = flag_of(name)
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        elif value is not None:
            yield f"{flag} {shlex.quote(printable_path(value))}"


def _shown(path: Path) -> str:
    return printable_path(path)


def _quoted(path: Path) -> str:
    return shlex.quote(_shown(path))
