"""All the programs that a training is told to: opened when its run folder stands, and none of them can end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from index.errors import InputError
from index.telemetry import switch_off_telemetry
from training.options.log_targets import KINDS, LogTarget, hide_password
from training.run.log.figures import belief_figures, epoch_figures, report_figures, report_words, trial_figures
from training.run.log.tracker import Tracker, WatchedRun
from training.run.phases import Watcher
from training.run.run_folder import RunFolder

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
    """Begin or go on with a run in a target.

    Raises:
        InputError: it cannot be opened, for whatever reason its client has.
    """
    try:
        tracker: Tracker = import_module(KINDS[target.kind].module).open_tracker(target.place, watched)
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
