"""Progress display of training on stderr: bars on a terminal, else a line for each stage and every tenth epoch."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from index.commands.console import ProgressLines
from training.run.phases import FINETUNING, EpochReport, Watcher
from training.run.report_text import summarize_holdout

_UNITS = {"holdout": "steps", "choosing a precision": "measurement"}
"""What a stage counts, where that is not images."""


def describe_epoch(report: EpochReport) -> str:
    """Figures of an epoch in one line."""
    text = f"loss {report.loss:.4f}"
    if report.held_out_loss is not None:
        text += f", held out {report.held_out_loss:.4f}"
    if report.positives_per_sample is not None:
        text += f", {report.positives_per_sample:.2f} positives a sample, {report.share_without_positive:.1%} without"
    for part, name in (("unseen", "new classes"), ("seen", "new photos")):
        if (found := getattr(report, part)) is not None:
            text += f", MAP@R of {name} {100 * found:.1f} %"
    return f"{text}, {report.images_per_second:,.0f} images/s"


@contextmanager
def watch_training(*, shown: bool = True) -> Iterator[Watcher]:
    """Watcher that draws while the block runs; a silent one unless `shown`."""
    if not shown:
        yield Watcher()
        return
    if not sys.stderr.isatty():
        lines = ProgressLines()
        yield _saying(_print_line).beside(
            Watcher(
                on_phase=lambda name: _print_line(f"{name}: begins"),
                on_images=lambda name, done, total: lines.stage(name, unit=_UNITS.get(name, "images"))(done, total),
                on_epoch=_print_epoch,
            )
        )
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn(
            "{task.fields[figures]}", table_column=Column(ratio=1, no_wrap=True, overflow="crop")
        ),  # takes what is left
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as progress:
        bars = _Bars(progress)
        yield _saying(bars.say).beside(Watcher(on_images=bars.show_images, on_epoch=bars.show_epoch))


class _Bars:
    """A bar for each stage and phase, below the lines that stay."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)

    def show_images(self, name: str, done: int, total: int) -> None:
        speed = self._progress.tasks[self._tasks[name]].speed if name in self._tasks else None
        figures = f"{speed:,.0f} {_UNITS.get(name, 'images')}/s" if speed else ""
        self._update(name, done=done, total=total, figures=figures)

    def show_epoch(self, report: EpochReport) -> None:
        self._update(report.phase, done=report.epoch, total=report.epochs, figures=describe_epoch(report))

    def _update(self, name: str, *, done: int, total: int, figures: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, figures="")
        self._progress.update(self._tasks[name], completed=done, total=total, figures=figures)


def _saying(say: Callable[[str], None]) -> Watcher:
    """Watcher that prints validation, holdout results and notes as lines."""

    def say_holdout(holdout: Mapping[str, Any]) -> None:
        if line := summarize_holdout(holdout):
            say(line)

    def say_recall(epoch: int, recall: dict[int, float]) -> None:
        figures = ", ".join(f"@{k} {100 * value:.2f}" for k, value in recall.items())
        say(f"embedding {epoch}: Recall {figures} % in validation")

    return Watcher(on_validation=say_recall, on_holdout=say_holdout, on_note=say)


def _print_epoch(report: EpochReport) -> None:
    if report.epoch % 10 and report.epoch not in (1, report.epochs) and report.phase != FINETUNING:
        return  # a log wants the course, not every step of it; metrics.jsonl has them all
    _print_line(f"{report.phase} {report.epoch}/{report.epochs}: {describe_epoch(report)}")


def _print_line(text: str) -> None:
    click.echo(text, err=True)
