"""Experiment trackers: TensorBoard, MLflow and Weights & Biases; their failures never end a training."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from index.errors import InputError
from index.telemetry import switch_off_telemetry
from index.text import printable_path
from training.data.datasets import require_outside
from training.options.log_targets import LogTarget, hide_password
from training.run.phases import Watcher
from training.run.run_folder import RunFolder
from training.run.verdict import QUESTIONS

logger = logging.getLogger(__name__)

MAIN = ("val/recall_at_1", "holdout/new_classes/trained", "holdout/new_photos/trained")
"""By which runs are compared."""
_MLFLOW_TAG = "retrieval.run_id"
_MLFLOW_STORE = "sqlite:///mlflow.db"  # in the working folder, whatever lies there of MLflow's earlier ways
_MOST_PARAMETERS, _MOST_METRICS = 100, 1000  # that MLflow takes in one call
_LONGEST = 6000  # characters of MLflow's parameters
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""A server that is gone would hold the training up for minutes; what somebody has set himself stays."""
_SEND_EVERY_S = 1.0  # a call takes some 30 ms, an epoch of a head a few; what a kill costs, a resume tells
_ADVICE = {
    "tensorboard": "name a folder that can be written",
    "mlflow": "a file is sqlite:///NAME.db, a server http://HOST:5000",
    "wandb": "`wandb login` once, or set WANDB_MODE=offline and send it later with `wandb sync`",
}


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
        for method, recall in holdout[part]["recall_at_1"].items()
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


def report_words(report: Mapping[str, Any]) -> dict[str, str]:
    """Text values of a report: the exported method, the selected view and pooling."""
    choice = report.get("feature_selection") or {}
    return {"selected": report["method"]} | {name: str(choice[name]) for name in ("view", "pooling") if name in choice}


def _recalls(prefix: str, scores: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for k, recall in scores["recall"].items():
        yield f"{prefix}/recall_at_{k}", recall
    for search in ("grouped", "against_training"):
        if scores.get(search):
            yield f"{prefix}/{search}/recall_at_1", scores[search]["recall"]["1"]


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run as it begins or continues.

    Attributes:
        run_id: random name of the run folder, by which a tracker finds the run again.
        data: training data.
        options: resolved options by dotted name, such as `loss.method`.
    """

    run_id: str
    path: Path
    data: Path
    options: Mapping[str, str | int | float | bool]

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.path.resolve().name


class Tracker(Protocol):
    """One run in one tracker, made by `TRACKERS[kind](place, run)`.

    A continued run is logged from its first epoch again, with the same numbers; the tracker keeps each once.
    """

    where: str
    """Where people find it, in words."""

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        """The figures of an epoch of a phase; `number` 1, 2, ... counts the lines of all phases."""

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        """What was found, which belongs to no epoch: may be told in parts, and again."""

    def close(self, *, finished: bool) -> None:
        """End the log; `finished` is False for an interrupted training, which may continue."""


class TensorBoardTracker:
    """Event file in a folder of the run's own, flushed at every epoch: scalars `PHASE/FIGURE`, options as hparams."""

    def __init__(self, place: str | None, run: WatchedRun) -> None:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder = Path(place or ".")
        require_outside(folder, data=run.data, flag="--log tensorboard:")
        own = folder / f"{run.name}-{run.run_id[:8]}"
        self._known = {  # (tag, step) of all that its files have, but for what a kill tore off
            (value.tag, event.step)
            for file in sorted(own.glob("events.out.tfevents.*"))
            for event in EventFileLoader(str(file)).Load()
            for value in event.summary.value
        }
        is_new = not own.exists()
        self._writer = SummaryWriter(str(own))
        self.where = f"tensorboard --logdir {printable_path(str(folder))}"
        if is_new:
            for summary in hparams(dict(run.options), dict.fromkeys(MAIN, 0.0)):
                self._writer._get_file_writer().add_summary(summary)
        self._writer.flush()

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        self._add({f"{phase}/{name}": value for name, value in figures.items()}, step=epoch)

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        for name, text in words.items():
            self._writer.add_text(name, text)
        self._add(figures, step=0)

    def close(self, *, finished: bool) -> None:
        self._writer.close()

    def _add(self, figures: Mapping[str, float], *, step: int) -> None:
        for tag, value in figures.items():
            if (tag, step) not in self._known:
                self._known.add((tag, step))
                self._writer.add_scalar(tag, value, step)
        self._writer.flush()


class MlflowTracker:
    """Run in an MLflow store, found again by its tag, with metrics `PHASE/FIGURE` by epoch."""

    def __init__(self, place: str | None, run: WatchedRun) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        for name, value in _IMPATIENT.items():
            os.environ.setdefault(name, value)
        for name in ("mlflow", "alembic"):  # which tell of every table that they make
            logging.getLogger(name).setLevel(logging.WARNING)
        store = place or os.environ.get("MLFLOW_TRACKING_URI") or _MLFLOW_STORE
        self._client = client = MlflowClient(tracking_uri=store)
        self._metric = Metric
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "retrieval"
        known = client.get_experiment_by_name(name)
        experiment = str(client.create_experiment(name) if known is None else known.experiment_id)
        found = client.search_runs([experiment], filter_string=f"tags.`{_MLFLOW_TAG}` = '{run.run_id}'", max_results=1)
        self._known = set[tuple[str, int]]()
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        if found:
            self._id = found[0].info.run_id
            for key in found[0].data.metrics:
                self._known |= {(key, one.step) for one in client.get_metric_history(self._id, key)}
            client.update_run(self._id, status="RUNNING")
        else:
            self._id = client.create_run(experiment, run_name=run.name, tags={_MLFLOW_TAG: run.run_id}).info.run_id
            params = [Param(name, str(value)[:_LONGEST]) for name, value in run.options.items()]
            for first in range(0, len(params), _MOST_PARAMETERS):
                client.log_batch(self._id, params=params[first : first + _MOST_PARAMETERS])
        self.where = f"run {self._id} in {client.tracking_uri}"

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        self._add({f"{phase}/{name}": value for name, value in figures.items()}, step=epoch)

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        for name, text in words.items():
            self._client.set_tag(self._id, name, text)
        self._add(figures, step=0)
        self._send()

    def close(self, *, finished: bool) -> None:
        self._send()
        self._client.set_terminated(self._id, status="FINISHED" if finished else "KILLED")

    def _add(self, figures: Mapping[str, float], *, step: int) -> None:
        now = int(1000 * time.time())
        new = [self._metric(key, value, now, step) for key, value in figures.items() if (key, step) not in self._known]
        self._known.update((metric.key, step) for metric in new)
        self._waiting += new
        if time.monotonic() - self._sent > _SEND_EVERY_S or len(self._waiting) > _MOST_METRICS // 2:
            self._send()

    def _send(self) -> None:
        for first in range(0, len(self._waiting), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=self._waiting[first : first + _MOST_METRICS])
        self._waiting.clear()
        self._sent = time.monotonic()


class WandbTracker:
    """Run in Weights & Biases with the run folder's id, and charts `PHASE/FIGURE` over `PHASE/epoch`.

    Online, a continued run is asked for its last epoch. Offline, where wandb's writer may lose data when killed, every
    start writes all from the first epoch: the newest of the run's files is whole.
    """

    def __init__(self, place: str | None, run: WatchedRun) -> None:
        import wandb

        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise PermissionError("nobody has logged in to wandb here")
        entity, _, project = (place or os.environ.get("WANDB_PROJECT") or "retrieval").rpartition("/")
        # Nothing but what is told: no standard output, no code, no command line, no figures of the machine.
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        self._run = wandb.init(
            project=project, entity=entity or None, id=run.run_id, name=run.name, resume="allow", reinit="create_new",
            config=dict(run.options), settings=settings,
        )  # fmt: skip
        self._next = self._run.step
        self._phases = set[str]()
        self.where = f"wandb sync {self._run.settings.sync_dir}" if self._run.offline else str(self._run.url)

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        if phase not in self._phases:
            self._phases.add(phase)
            self._run.define_metric(f"{phase}/epoch", hidden=True)
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/epoch")
        if number >= self._next:
            told = {f"{phase}/{name}": value for name, value in figures.items()}
            self._run.log({**told, f"{phase}/epoch": epoch}, step=number)

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        self._run.summary.update({**figures, **words})

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[str | None, WatchedRun], Tracker]] = {
    "tensorboard": TensorBoardTracker, "mlflow": MlflowTracker, "wandb": WandbTracker,
}  # fmt: skip


@contextmanager
def open_loggers(targets: Sequence[LogTarget], *, tell: Callable[[str], None] = lambda _: None) -> Iterator[Watcher]:
    """Watcher that logs to every target while the block runs; `tell` receives the place of each.

    A target that cannot be opened is an `InputError`, before any work. A later failure is warned of once, and the
    target is left out: `metrics.jsonl` has all, and `--resume` logs the missing lines.
    """
    switch_off_telemetry()  # before any of them is imported
    loggers = _Loggers(targets, tell=tell)
    finished = False
    try:
        yield Watcher(
            on_run=loggers.begin,
            on_epoch=lambda report: loggers.tell_line(report.to_json()),
            on_validation=lambda epoch, recall: loggers.tell_line(
                {"phase": "validation", "epoch": epoch, "recall": recall}
            ),
            on_holdout=lambda holdout: loggers.tell_outcome(holdout_figures(holdout)),
            on_report=lambda report: loggers.tell_outcome(report_figures(report), report_words(report)),
        )
        finished = True
    finally:
        loggers.close(finished=finished)


class _Loggers:
    def __init__(self, targets: Sequence[LogTarget], *, tell: Callable[[str], None]) -> None:
        self._targets, self._tell = targets, tell
        self._trackers: dict[LogTarget, Tracker] = {}
        self._told = set[tuple[str, int]]()

    def begin(self, run: RunFolder) -> None:
        document = run.read_json("config.json")
        options = dict(_flatten(document["config"])) | {name: document[name] or "" for name in ("data", "val")}
        watched = WatchedRun(run.run_id, run.path, run.data, options)
        for target in self._targets:
            tracker = open_target(target, watched)
            self._trackers[target] = tracker
            self._tell(f"{target}: {hide_password(tracker.where)}")
        for line in run.read_metrics():
            self.tell_line(line)

    def tell_line(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl; an epoch that is trained again after a kill is logged once."""
        phase, epoch = line["phase"], line["epoch"]
        if (phase, epoch) in self._told:
            return
        self._told.add((phase, epoch))
        number, figures = len(self._told), epoch_figures(line)
        self._each(lambda tracker: tracker.tell_epoch(phase, epoch, figures, number=number))

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str] | None = None) -> None:
        self._each(lambda tracker: tracker.tell_outcome(figures, words or {}))

    def close(self, *, finished: bool) -> None:
        self._each(lambda tracker: tracker.close(finished=finished))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for target, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            # Whatever a program's client raises, the training is worth more than its image.
            except Exception as error:  # noqa: BLE001
                del self._trackers[target]
                logger.warning(
                    "%s: %s: %s; it is told nothing more. The training goes on, and metrics.jsonl has all of it",
                    target, type(error).__name__, _say(error),
                )  # fmt: skip


def open_target(target: LogTarget, watched: WatchedRun) -> Tracker:
    """Begin or continue a run in a target."""
    try:
        return TRACKERS[target.kind](target.place, watched)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{target}: it cannot be opened: {type(error).__name__}: {_say(error)}; {_ADVICE[target.kind]}"
        ) from error


def _say(error: Exception) -> str:
    return hide_password(" ".join(str(error).split()))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str | int | float | bool) else str(value)
