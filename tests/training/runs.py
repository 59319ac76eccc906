"""Reading run folders, and interrupting runs."""

import csv
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from training.run.phases import EpochReport, Watcher


class InterruptionError(Exception):
    """Stands for whatever ends a process."""


def interrupt_at(phase: str, number: int) -> Watcher:
    """In an epoch of a phase, or once it has done so many images."""

    def stop(name: str, done: int) -> None:
        if (name, done) == (phase, number):
            raise InterruptionError

    return Watcher(
        on_epoch=lambda report: stop(report.phase, report.epoch), on_images=lambda name, done, _: stop(name, done)
    )


def kill_at(phase: str, number: int) -> Watcher:
    """Of this process, after an epoch of a phase."""

    def kill(report: EpochReport) -> None:
        if (report.phase, report.epoch) == (phase, number):
            os.kill(os.getpid(), signal.SIGKILL)

    return Watcher(on_epoch=kill)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def epochs(run: Path) -> list[tuple[str, int]]:
    return [(line["phase"], line["epoch"]) for line in read_metrics(run)]


def figures(run: Path) -> list[dict[str, Any]]:
    timed = {"seconds", "images_per_second"}
    return [{name: value for name, value in line.items() if name not in timed} for line in read_metrics(run)]


def weights(run: Path, name: str = "head") -> str:
    """A digest of the weights that a run ended with: pytest would look for the difference of the bytes for minutes."""
    return hashlib.sha256((run / f"{name}.safetensors").read_bytes()).hexdigest()
