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


def report_figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Main figures of a report: counts, seconds by phase, Recall@K, the holdout evaluation, and fine-tuning."""
    figures = {f"data/{name}": report[name] for name in ("images", "trained_on", "classes", "skipped")}
    figures |= {f"seconds/{name}": phase["seconds"] for name, phase in report["phases"].items()}
    figures["seconds/total"] = report["seconds"]
    if (holdout := report["holdout"]) is not None:
        figures |= {} if holdout["l2_sp"] is None else {"holdout/l2_sp": holdout["l2_sp"]}
        figures |= {
            f"holdout/{words.replace(' ', '_')}/{method}": recall
            for part, words in QUESTIONS.items()
            if holdout[part] is not None
            for method, recall in holdout[part]["scores"].items()
        }
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


def open_event_file(folder: Path, run: RunFolder) -> Any:
    """`SummaryWriter` in a folder of the run's own, with the options as hparams; older event files there go.

    A continued run is written anew from its first epoch: TensorBoard would show epochs of two files twice.
    """
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    require_outside(folder, data=run.data, flag="--tensorboard")
    own = folder / f"{run.path.resolve().name}-{run.run_id[:8]}"
    for file in own.glob("events.out.tfevents.*"):
        file.unlink()
    writer = SummaryWriter(str(own))
    document = run.read_json("config.json")
    values = run.options | {name: document[name] or "" for name in ("data", "val")}
    options = {n: v if isinstance(v, str | int | float | bool) else str(v) for n, v in values.items()}
    for summary in hparams(options, dict.fromkeys(MAIN, 0.0)):
        writer._get_file_writer().add_summary(summary)
    return writer


def write_figures(writer: Any, figures: Mapping[str, float], *, step: int) -> None:
    """Add scalars, at once on disk."""
    for tag, value in figures.items():
        writer.add_scalar(tag, value, step)
    writer.flush()


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
    writer: Any = None

    def begin(run: RunFolder) -> None:
        nonlocal writer
        shown = printable_path(folder)
        try:
            writer = open_event_file(folder, run)
        except OSError as error:
            raise InputError(f"--tensorboard {shown}: {error.strerror}; name a folder that can be written") from error
        tell(f"tensorboard --logdir {shown}")
        for line in run.read_metrics():
            log_line(line)

    def log(figures: Mapping[str, float], step: int = 0) -> None:
        nonlocal writer
        if writer is None:
            return
        try:
            write_figures(writer, figures, step=step)
        except OSError as error:
            logger.warning("--tensorboard: %s; nothing more is logged there, metrics.jsonl has all of it", error)
            with suppress(OSError):
                writer.close()
            writer = None

    def log_line(line: Mapping[str, Any]) -> None:
        figures = {name: value for name, value in line.items() if name not in ("phase", "epoch", "epochs", "recall")}
        figures |= {f"recall_at_{k}": value for k, value in line.get("recall", {}).items()}
        log({f"{line['phase']}/{name}": value for name, value in figures.items()}, step=line["epoch"])

    try:
        yield Watcher(
            on_run=begin,
            on_epoch=lambda report: log_line(report.to_json()),
            on_validation=lambda epoch, recall: log_line({"phase": "validation", "epoch": epoch, "recall": recall}),
            on_report=lambda report: log(report_figures(report)),
        )
    finally:
        if writer is not None:
            with suppress(OSError):
                writer.close()
