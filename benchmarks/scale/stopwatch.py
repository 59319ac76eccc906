"""How long things take, on the wall or on the processor, and the most memory that they take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.common.processes import read_memory, sampling
from index.progress import Progress

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
"""`wall` is what people wait; `processor` what all threads of the process take, on a busy machine too."""

_SAMPLE_SECONDS = 0.02


class Stopwatch:
    """Seconds by name, by one of the clocks; those of the same name are summed."""

    def __init__(self, clock: str) -> None:
        self.clock, self._now = clock, CLOCKS[clock]
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """The seconds of what is done within."""
        started = self._now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - started

    def begin(self, name: str) -> Progress:
        """As `BeginStep`: the seconds of a step of longer work, from its beginning to its last word."""
        started, before = self._now(), self.seconds.get(name, 0.0)

        def progress(done: int, total: int) -> None:
            self.seconds[name] = before + self._now() - started

        progress(0, 0)
        return progress

    def take_median(self, name: str, call: Callable[[Any], object], given: Iterable[Any]) -> None:
        """The median of a call for each of what is given."""
        spans = []
        for each in given:
            started = self._now()
            call(each)
            spans.append(self._now() - started)
        self.seconds[name] = statistics.median(spans)


@dataclass(slots=True)
class Peak:
    """The most memory that this process took, in bytes; see `read_memory`."""

    most: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Take the memory now."""
        now = read_memory(psutil.Process())
        self.most = {kind: max(size, self.most.get(kind, 0)) for kind, size in now.items()}


@contextmanager
def watching_memory() -> Iterator[Peak]:
    """The most that this process takes within."""
    peak = Peak()
    peak.look()
    with sampling(peak.look, every_s=_SAMPLE_SECONDS):
        yield peak
    peak.look()
