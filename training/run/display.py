"""Display of a training: lines and bars on stderr, and TensorBoard's files (`--tensorboard DIR`)."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from index.commands.console import progress_bars
from index.errors import InputError, MissingDependencyError
from index.progress import Progress
from training.data.datasets import require_outside
from training.run.phases import FINETUNING, EpochReport, Watcher
from training.run.report_text import summarize_holdout
from training.run.run_folder import RunFolder

logger = logging.getLogger(__name__)

_UNITS = {"holdout": "steps", "choosing a precision": "measurement"}
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


@contextmanager
def open_tensorboard(folder: Path) -> Iterator[Watcher]:
    """Watcher that logs options and epochs to TensorBoard's files below `folder` while the block runs.

    A folder that cannot be written is an `InputError`, before any work; a later failure is warned of once, and nothing
    more is logged.
    """
    if find_spec("tensorboard") is None:
        raise MissingDependencyError(package="tensorboard", extra="tensorboard", purpose="--tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = None

    def begin(run: RunFolder) -> None:
        nonlocal writer
        require_outside(folder, data=run.data, flag="--tensorboard")
        own = folder / f"{run.path.resolve().name}-{run.run_id[:8]}"
        try:
            for file in own.glob("events.out.tfevents.*"):  # TensorBoard would show epochs of two files twice
                file.unlink()
            writer = SummaryWriter(str(own))
            writer.add_text("options", json.dumps(run.options, indent=2))
        except OSError as error:
            raise InputError(f"--tensorboard: {error}; name a folder that can be written") from error
        for line in run.read_metrics():
            log(line)

    def log(line: Mapping[str, Any]) -> None:
        nonlocal writer
        if writer is None:
            return
        try:
            for name in line.keys() - {"phase", "epoch", "epochs"}:
                writer.add_scalar(f"{line['phase']}/{name}", line[name], line["epoch"])
            writer.flush()
        except OSError as error:
            logger.warning("--tensorboard: %s; nothing more is logged there, metrics.jsonl has all of it", error)
            close()

    def close() -> None:
        nonlocal writer
        if writer is not None:
            with suppress(OSError):
                writer.close()
        writer = None

    try:
        yield Watcher(on_run=begin, on_epoch=lambda report: log(report.to_json()))
    finally:
        close()
