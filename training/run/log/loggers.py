"""Experiment trackers: all that a training is logged to; none of them can end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from index.errors import InputError
from index.telemetry import switch_off_telemetry
from training.options.log_targets import LogTarget, hide_password
from training.run.phases import Watcher
from training.run.run_folder import RunFolder
from training.run.verdict import QUESTIONS

MAIN = ("val/recall_at_1", "trial/new_classes/trained", "trial/new_photos/trained")
"""By which runs are compared."""

_NO_FIGURES = ("phase", "epoch", "epochs")


def epoch_figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a line of metrics.jsonl: of an epoch, or Recall@K of a validation (fractions)."""
    figures = {name: value for name, value in line.items() if name not in (*_NO_FIGURES, "recall")}
    return figures | {f"recall_at_{k}": value for k, value in line.get("recall", {}).items()}


def trial_figures(trial: Mapping[str, Any]) -> dict[str, float]:
    """Recall@1 (fractions) by method, of every question that could be asked, and the hold that was chosen."""
    hold = {} if trial["hold"] is None else {"trial/hold": trial["hold"]}
    return hold | {
        f"trial/{words.replace(' ', '_')}/{method}": recall
        for part, words in QUESTIONS.items()
        if trial[part] is not None
        for method, recall in trial[part]["recall_at_1"].items()
    }


def belief_figures(beliefs: Mapping[str, Any]) -> dict[str, float]:
    """How far labels are believed, on average over all images (0..1)."""
    return {"beliefs/mean_weight": beliefs["mean_weight"]}


def report_figures(report: Mapping[str, Any]) -> dict[str, float]:
    """The main figures of a report: counts, seconds by phase, Recall@K, the trial, and the network stage."""
    figures = {f"data/{name}": report[name] for name in ("images", "trained_on", "classes", "skipped")}
    figures |= {f"seconds/{name}": phase["seconds"] for name, phase in report["phases"].items()}
    figures["seconds/total"] = report["seconds"]
    for name, tell in (("trial", trial_figures), ("beliefs", belief_figures), ("network", _network_figures)):
        if report.get(name) is not None:
            figures |= tell(report[name])
    if report["val"] is not None:
        figures |= dict(_recalls("val", report["val"]))
        for name, scores in report["baselines"].items():
            figures |= dict(_recalls(f"val/untrained/{name}", scores))
    return figures


def report_words(report: Mapping[str, Any]) -> dict[str, str]:
    """What a report says that is no number: the method that ships, and what of an image its network sees."""
    choice = report.get("feature_choice") or {}
    return {"ships": report["method"]} | {
        name: str(choice[name]) for name in ("view", "pooling") if name in choice
    }


def _recalls(prefix: str, scores: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for k, recall in scores["recall"].items():
        yield f"{prefix}/recall_at_{k}", recall
    for search in ("apart", "against_training"):
        if scores.get(search):
            yield f"{prefix}/{search}/recall_at_1", scores[search]["recall"]["1"]


def _network_figures(network: Mapping[str, Any]) -> dict[str, float]:
    """MAP@R (fractions) on what the network stage held out, of all that it chose among, and whether it ships."""
    return {"held_out/ships": float(network["ships"])} | {
        f"held_out/{name.replace(', ', '_').replace(' ', '_')}/{part}": found
        for name, parts in network["tried"].items()
        for part, found in parts.items()
    }


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """The run as it begins, or goes on.

    Attributes:
        run_id: the run folder's; by it a program finds the run again that it was told of before.
        path: the run folder.
        data: what it trains on.
        options: the resolved options by dotted name, such as `loss.method`.
    """

    run_id: str
    path: Path
    data: Path
    options: Mapping[str, str | int | float | bool]

    @property
    def name(self) -> str:
        """For people: the run folder's own."""
        return self.path.resolve().name


class Tracker(Protocol):
    """One run in one such program, opened by its module's `open_tracker(place, run)`.

    A run that goes on is told from its first epoch again, with the same numbers; what the program has, it keeps once.
    """

    where: str
    """Where people find it, in words."""

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        """The figures of an epoch of a phase; `number` 1, 2, ... counts the lines of all phases."""

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        """What was found, which belongs to no epoch: may be told in parts, and again."""

    def close(self, *, finished: bool) -> None:
        """All is told; `finished` is False where the training was cut off, and may go on."""


logger = logging.getLogger(__name__)


@contextmanager
def open_loggers(
    targets: Sequence[LogTarget], *, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Watcher]:
    """A watcher that tells every target of the run while the block runs; `tell` is told where each can be looked at.

    What is not reached when the run begins is an `InputError`, before any long work. What fails later is warned of once
    and left out from there: `metrics.jsonl` has all, and a `--resume` tells what is missing.
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
            on_trial=lambda trial: loggers.tell_outcome(trial_figures(trial)),
            on_beliefs=lambda beliefs: loggers.tell_outcome(belief_figures(beliefs)),
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
        watched = _describe(run)
        for target in self._targets:
            tracker = open_target(target, watched)
            self._trackers[target] = tracker
            self._tell(f"{target}: {hide_password(tracker.where)}")
        for line in run.read_metrics():
            self.tell_line(line)

    def tell_line(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl; an epoch that is trained again after a kill is told once."""
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
            # Whatever a program's client raises, the training is worth more than its picture.
            except Exception as error:  # noqa: BLE001
                del self._trackers[target]
                logger.warning(
                    "%s: %s: %s; it is told nothing more. The training goes on, and metrics.jsonl has all of it",
                    target, type(error).__name__, _say(error),
                )  # fmt: skip


def open_target(target: LogTarget, watched: WatchedRun) -> Tracker:
    """Begin or go on with a run in a target."""
    try:
        tracker: Tracker = import_module(f"training.run.log.{target.kind}_log").open_tracker(target.place, watched)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{target}: it cannot be opened: {type(error).__name__}: {_say(error)}") from error
    return tracker


def _say(error: Exception) -> str:
    return hide_password(" ".join(str(error).split()))


def _describe(run: RunFolder) -> WatchedRun:
    document = run.read_json("config.json")
    options = dict(_flatten(document["config"])) | {name: document[name] or "" for name in ("data", "val")}
    return WatchedRun(run.run_id, run.path, data=run.data, options=options)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str | int | float | bool) else str(value)
