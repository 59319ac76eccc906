"""The progress display of training, on stderr: live on a terminal, a line a stage and every tenth epoch elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from index.commands.progress_lines import ProgressLines
from training.run.phases import NETWORK, EpochReport, Watcher

_UNITS = {"look": "views", "trial": "folds"}
"""What a stage counts, where that is not images."""


def describe_epoch(report: EpochReport) -> str:
    """An epoch's figures in one line."""
    text = f"loss {report.loss:.4f}"
    if report.held_out_loss is not None:
        text += f", held out {report.held_out_loss:.4f}"
    if report.positives_per_sample is not None:
        text += (
            f", {report.positives_per_sample:.2f} positives a sample, {report.share_without_positive:.1%} without"
        )
    for part in ("unseen", "seen"):
        if (found := getattr(report, part)) is not None:
            text += f", {part} {100 * found:.2f}"
    return f"{text}, {report.images_per_second:,.0f} images/s"


@contextmanager
def watch_training() -> Iterator[Watcher]:
    """A watcher that draws while the block runs."""
    if not sys.stderr.isatty():
        lines = ProgressLines()
        yield Watcher(
            on_phase=lambda name: click.echo(f"{name}: begins", err=True),
            on_images=lambda name, done, total: lines.stage(name, unit=_UNITS.get(name, "images"))(done, total),
            on_epoch=_print_epoch, on_validation=_print_validation, on_note=_print_note,
        )  # fmt: skip
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", table_column=Column(ratio=1, no_wrap=True)),  # takes what is left
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(name: str, *, done: int, total: int, figures: str) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, figures="")
            bars.update(tasks[name], completed=done, total=total, figures=figures)

        def on_images(name: str, done: int, total: int) -> None:
            speed = bars.tasks[tasks[name]].speed if name in tasks else None
            update(name, done=done, total=total, figures=f"{speed:,.0f} images/s" if speed else "")

        def on_epoch(report: EpochReport) -> None:
            update(report.phase, done=report.epoch, total=report.epochs, figures=describe_epoch(report))

        def on_validation(epoch: int, recall: dict[int, float]) -> None:
            bars.console.print(_validation_line(epoch, recall))

        yield Watcher(
            on_images=on_images, on_epoch=on_epoch, on_validation=on_validation, on_note=bars.console.print
        )


def _print_epoch(report: EpochReport) -> None:
    if report.epoch % 10 and report.epoch not in (1, report.epochs) and report.phase != NETWORK:
        return  # a log wants the course, not every step of it; metrics.jsonl has them all
    click.echo(f"{report.phase} {report.epoch}/{report.epochs}: {describe_epoch(report)}", err=True)


def _print_validation(epoch: int, recall: dict[int, float]) -> None:
    click.echo(_validation_line(epoch, recall), err=True)


def _print_note(text: str) -> None:
    click.echo(text, err=True)


def _validation_line(epoch: int, recall: dict[int, float]) -> str:
    figures = ", ".join(f"@{k} {100 * value:.2f}" for k, value in recall.items())
    return f"embedding {epoch}: Recall {figures} % in validation"
