"""A progress bar for each step of a job that names its steps as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from index.commands.console import progress_bars
from index.progress import Progress


@contextmanager
def step_bars() -> Iterator[Callable[[str, int, int], None]]:
    """What a job calls with (step, done, total), in images."""
    with progress_bars() as begin:
        bars: dict[str, Progress] = {}

        def progress(step: str, done: int, total: int) -> None:
            if step not in bars:
                bars[step] = begin(step, unit="images")
            bars[step](done, total)

        yield progress
