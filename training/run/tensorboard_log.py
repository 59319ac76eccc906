"""TensorBoard log of a training (`--tensorboard DIR`); its failures never end the training."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from index.errors import InputError, MissingDependencyError
from index.text import printable_path
from training.data.datasets import require_outside
from training.run.phases import Watcher
from training.run.run_folder import RunFolder
from training.run.verdict import QUESTIONS

logger = logging.getLogger(__name__)

MAIN = ("val/recall_at_1", "holdout/new_classes/trained", "holdout/new_photos/trained")
"""By which runs are compared."""


def epoch_figures(line: Mapping[str, Any]) -> dict[str, float]:
    """Figures of a line of metrics.jsonl: of an epoch, or Recall@K (fractions)."""
    figures = {name: value for name, value in line.items() if name not in ("phase", "epoch", "epochs", "recall")}
    return figures | {f"recall_at_{k}": value for k, value in line.get("recall", {}).items()}


def holdout_figures(holdout: Mapping[str, Any]) -> dict[str, float]:
    """Recall@1 (fractions) by method in each part of the holdout evaluation, and the selected L2-SP weight."""
    l2_sp = {} if holdout["l2_sp"] is None else {"holdout/l2_sp": holdout["l2_sp"]}
    return l2_sp | {
        f"holdout/{words.replace(' ', '_')}/{method}": recall
        for part, words in QUESTIONS.items()
        if holdout[part] is not None
        for method, recall in holdout[part]["scores"].items()
    }


def report_figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Main figures of a report: counts, seconds by phase, Recall@K, the holdout evaluation, and fine-tuning."""
    figures = {f"data/{name}": report[name] for name in ("images", "trained_on", "classes", "skipped")}
    figures |= {f"seconds/{name}": phase["seconds"] for name, phase in report["phases"].items()}
    figures["seconds/total"] = report["seconds"]
    if report["holdout"] is not None:
        figures |= holdout_figures(report["holdout"])
    if report["confidences"] is not None:
        figures |= {f"confidences/{name}": value for name, value in report["confidences"].items()}
    if (network := report["finetuning"]) is not None:  # MAP@R on what it held out, of all that it chose among
        figures["held_out/selected"] = float(network["selected"])
        for name, parts in network["tried"].items():
            shown = name.replace(", ", "_").replace(" ", "_")
            figures |= {f"held_out/{shown}/{part}": found for part, found in parts.items()}
    if report["val"] is not None:
        figures |= dict(_recalls("val", report["val"]))
        for name, scores in report["baselines"].items():
            figures |= dict(_recalls(f"val/untrained/{name}", scores))
    return figures


def _recalls(prefix: str, scores: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for k, recall in scores["recall"].items():
        yield f"{prefix}/recall_at_{k}", recall
    for search in ("grouped", "against_training"):
        if scores.get(search):
            yield f"{prefix}/{search}/recall_at_1", scores[search]["recall"]["1"]


class EventLog:
    """Event file in a folder of the run's own, flushed at every epoch: scalars `PHASE/FIGURE`, options as hparams.

    A continued run is logged from its first epoch again, with the same numbers; each is kept once.

    Args:
        folder: of all runs.

    Raises:
        InputError: the folder lies inside the images.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, run: RunFolder) -> None:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        require_outside(folder, data=run.data, flag="--tensorboard")
        own = folder / f"{run.path.resolve().name}-{run.run_id[:8]}"
        self._known = {  # (tag, step) of all that its files have, but for what a kill tore off
            (value.tag, event.step)
            for file in sorted(own.glob("events.out.tfevents.*"))
            for event in EventFileLoader(str(file)).Load()
            for value in event.summary.value
        }
        is_new = not own.exists()
        self._writer = SummaryWriter(str(own))
        if is_new:
            document = run.read_json("config.json")
            values = run.options | {name: document[name] or "" for name in ("data", "val")}
            options = {n: v if isinstance(v, str | int | float | bool) else str(v) for n, v in values.items()}
            for summary in hparams(options, dict.fromkeys(MAIN, 0.0)):
                self._writer._get_file_writer().add_summary(summary)
        self._writer.flush()

    def log(self, figures: Mapping[str, float], *, step: int) -> None:
        """Add scalars that are not there yet."""
        for tag, value in figures.items():
            if (tag, step) not in self._known:
                self._known.add((tag, step))
                self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def log_line(self, line: Mapping[str, Any]) -> None:
        """Add a line of metrics.jsonl."""
        self.log({f"{line['phase']}/{name}": value for name, value in epoch_figures(line).items()}, step=line["epoch"])

    def close(self) -> None:
        """End the file."""
        self._writer.close()


@contextmanager
def open_tensorboard(folder: Path | None, *, tell: Callable[[str], None] = lambda _: None) -> Iterator[Watcher]:
    """Watcher that logs to TensorBoard's files below `folder` while the block runs; None: a watcher of nothing.

    A folder that cannot be written is an `InputError`, before any work. A later failure is warned of once, and nothing
    more is logged: `metrics.jsonl` has all, and `--resume` logs the missing lines.
    """
    if folder is None:
        yield Watcher()
        return
    if find_spec("tensorboard") is None:
        raise MissingDependencyError(package="tensorboard", extra="tensorboard", purpose="--tensorboard")
    log: EventLog | None = None

    def begin(run: RunFolder) -> None:
        nonlocal log
        try:
            log = EventLog(folder, run)
        except OSError as error:
            shown = printable_path(str(folder))
            raise InputError(f"--tensorboard {shown}: {error.strerror}; name a folder that can be written") from error
        tell(f"tensorboard --logdir {printable_path(str(folder))}")
        for line in run.read_metrics():
            log_line(line)

    def attempt(act: Callable[[EventLog], None]) -> None:
        nonlocal log
        if log is None:
            return
        try:
            act(log)
        except OSError as error:
            logger.warning("--tensorboard: %s; nothing more is logged there, metrics.jsonl has all of it", error)
            with suppress(OSError):
                log.close()
            log = None

    def log_line(line: Mapping[str, Any]) -> None:
        attempt(lambda log: log.log_line(line))

    def log_report(report: Mapping[str, Any]) -> None:
        attempt(lambda log: log.log(report_figures(report), step=0))

    try:
        yield Watcher(
            on_run=begin,
            on_epoch=lambda report: log_line(report.to_json()),
            on_validation=lambda epoch, recall: log_line({"phase": "validation", "epoch": epoch, "recall": recall}),
            on_holdout=lambda holdout: attempt(lambda log: log.log(holdout_figures(holdout), step=0)),
            on_report=log_report,
        )
    finally:
        attempt(EventLog.close)
