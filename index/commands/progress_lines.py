"""Progress in plain lines, for a log or a pipe, where no bars can be drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from index.progress import Progress

EVERY_S = 30.0


@dataclass(slots=True)
class _Begun:
    """A stage that goes on: when it told of itself first, and when it had its last line."""

    at: float
    told: float


class ProgressLines:
    """A line on stderr every half a minute of a stage, and one at the end of a stage whose total is known.

    Args:
        least_s: stages that took less end without a line.
        clock: seconds since any moment.
    """

    def __init__(self, *, least_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._least_s, self._clock = least_s, clock
        self._begun: dict[str, _Begun] = {}

    def stage(self, name: str, *, unit: str) -> Progress:
        """What a stage calls with (done, total); it begins with its first call, and anew after its end."""
        return lambda done, total: self._tell(name, done, total, unit=unit)

    def _tell(self, name: str, done: int, total: int, *, unit: str) -> None:
        now = self._clock()
        begun = self._begun.setdefault(name, _Begun(now, now))
        seconds = now - begun.at
        if total and done >= total:
            del self._begun[name]
            if seconds >= self._least_s:
                click.echo(f"{name}: {total:,} {unit} in {seconds:.0f} s", err=True)
        elif now - begun.told >= EVERY_S:
            begun.told = now
            share = f"{done:,} of {total:,}" if total else f"{done:,}"
            click.echo(f"{name}: {share} {unit} after {seconds:.0f} s", err=True)
