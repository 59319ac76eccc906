"""What processes take, and the line through what they took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psutil
from scipy.stats import linregress


def read_memory(process: psutil.Process | None = None) -> dict[str, int]:
    """Bytes of a process (None: this one): its own (`anonymous`), of files it maps (`mapped`), both (`resident`)."""
    memory = (process or psutil.Process()).memory_info()
    return {"anonymous": memory.rss - memory.shared, "mapped": memory.shared, "resident": memory.rss}


def add_memory(ancestor: psutil.Process) -> dict[str, int]:
    """The same of all processes below one together; pages that they share are counted for each."""
    total = {"anonymous": 0, "mapped": 0, "resident": 0}
    for process in ancestor.children(recursive=True):
        try:
            found = read_memory(process)
        except psutil.NoSuchProcess:  # it has ended
            continue
        total = {kind: total[kind] + found[kind] for kind in total}
    return total


@contextmanager
def sampling(take: Callable[[], object], *, every_s: float) -> Iterator[None]:
    """Call `take` again and again, in a thread, while this is open."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            take()

    thread = threading.Thread(target=run, name="sampler")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def fit_line(places: np.ndarray, values: np.ndarray) -> dict[str, float] | None:
    """Slope of the least-squares line and its standard error; None with fewer than three places."""
    if len(np.unique(places)) < 3:
        return None
    line = linregress(places, values)
    return {"slope": float(line.slope), "standard_error": float(line.stderr)}
