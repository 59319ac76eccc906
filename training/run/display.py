"""Display of a training: lines and bars on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from index.commands.console import progress_bars
from index.progress import Progress
from training.run.phases import FINETUNING, EpochReport, Watcher
from training.run.report_text import summarize_holdout

_UNITS = {"holdout": "steps", "label posteriors": "steps", "choosing a precision": "measurement"}
"""Unit of the stages that do not count images."""


@contextmanager
def watch_training(*, shown: bool = True) -> Iterator[Watcher]:
    """Watcher that prints while the block runs; a silent one unless `shown`."""
    if not shown:
        yield Watcher()
        return
    bars: dict[str, Progress] = {}

    def say(line: str) -> None:
        if line:
            click.echo(line, err=True)

    def say_epoch(report: EpochReport) -> None:
        if report.epoch % 10 and report.epoch not in (1, report.epochs) and report.phase != FINETUNING:
            return
        text = f"{report.phase} {report.epoch}/{report.epochs}: loss {report.loss:.4f}"
        if report.held_out_loss is not None:
            text += f", held out {report.held_out_loss:.4f}"
        if (positives := report.positives_per_sample) is not None:
            text += f", {positives:.2f} positives a sample, {report.share_without_positive:.1%} without"
        for part, name in (("unseen", "new classes"), ("seen", "new photos")):
            if (found := getattr(report, part)) is not None:
                text += f", MAP@R of {name} {100 * found:.1f} %"
        say(f"{text}, {report.images_per_second:,.0f} images/s")

    with progress_bars() as begin_bar:

        def show_images(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = begin_bar(name, unit=_UNITS.get(name, "images"))
            bars[name](done, total)

        yield Watcher(
            on_phase=lambda name: say(f"{name}: begins"),
            on_images=show_images,
            on_epoch=say_epoch,
            on_holdout=lambda holdout: say(summarize_holdout(holdout)),
            on_note=say,
        )
