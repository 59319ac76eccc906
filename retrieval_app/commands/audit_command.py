"""`retrieval audit`."""

from __future__ import annotations

from pathlib import Path

import click

from index.commands.console import emit, output_options
from index.threads import usable_cores
from retrieval_app.commands.step_bars import step_bars
from retrieval_app.reports.public import audit as audit_labels
from training.public import default_cache

_PATH = click.Path(path_type=Path)


@click.command(short_help="Find the labels that look wrong.")
@click.argument("run", type=_PATH)
@click.option("--out", type=_PATH, metavar="FOLDER", show_default="RUN/audit", help="Folder to write.")
@click.option(
    "--apply", "apply_to", type=_PATH, metavar="FILE.csv",
    help="Also write a label file with the verdicts applied, for `retrieval train FILE.csv`.",
)  # fmt: skip
@click.option(
    "--decisions", type=_PATH, metavar="FILE.csv", show_default="decisions.csv in the folder, where there is one",
    help="What you decided on the page; it goes before the verdicts.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N",
    help="Images drawn on the page, the most suspicious first; the tables have all.",
)  # fmt: skip
@click.option(
    "--cache", type=_PATH, default=default_cache, show_default="your cache folder",
    help="Folder of backbone features; with that of the training, none is computed again.",
)  # fmt: skip
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
    help="Where to compute.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), default=usable_cores, show_default="cores", help="Decoding threads."
)
@output_options
def audit(
    run: Path, out: Path | None, apply_to: Path | None, decisions: Path | None, limit: int,
    cache: Path, device: str, workers: int, as_json: bool,
) -> None:  # fmt: skip
    """List the images of RUN whose label looks wrong, the most suspicious first, with what they seem to show.

    Works on a run of any method. Every label is judged leave-one-out, from all images but itself, and gets a
    verdict: keep, change or drop (it shows no class clearly, or a near-duplicate has a more credible label).
    RUN/audit/audit.html shows them; what you decide there and save as RUN/audit/decisions.csv counts when audit is
    called again. Images are never touched.

    \b
    Examples:
      retrieval audit run
      retrieval audit run --apply cleaned.csv
      retrieval audit run --decisions ~/Downloads/decisions.csv --apply cleaned.csv
      retrieval train cleaned.csv --weights imagenet --out run-cleaned
    """
    from retrieval_app.reports.audit_text import describe_audit, format_audit

    with step_bars() as progress:
        outcome = audit_labels(
            run, out, decisions=decisions, apply_to=apply_to, limit=limit, cache=cache, device=device, workers=workers,
            progress=progress,
        )  # fmt: skip
    emit(describe_audit(outcome), as_json=as_json, text=format_audit(outcome))
