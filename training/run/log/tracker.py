"""What a program that people watch trainings with is told, behind one Protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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
