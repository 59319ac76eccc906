"""Each contestant of `benchmarks.ann` built, and read again, in a process of its own: seconds, and bytes.

`run_alone(__name__, STEP)` runs one of `STEPS`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.ann.peers import Contestant, as_ids, import_peer
from benchmarks.common.processes import read_memory, sampling
from index.threads import usable_cores

SAMPLE_SECONDS = 0.1
Settings = Mapping[str, Any]


def build(settings: Settings) -> dict[str, Any]:
    """Build with all cores and write; seconds of both, bytes on disk, and the process's peaks of memory."""
    contestant, base, folder = _read(settings)
    folder.mkdir(parents=True)
    _warm_up(contestant, base)
    rows = contestant.load(base)
    peaks = read_memory()

    def look() -> None:
        for kind, value in read_memory().items():
            peaks[kind] = max(peaks[kind], value)

    with sampling(look, every_s=SAMPLE_SECONDS):
        before, started = read_memory(), time.perf_counter()
        contestant.build(rows, folder, threads=usable_cores())
        seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    disk_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".json")
    return {
        "seconds": seconds,
        "disk_bytes": disk_bytes,
        "before": before,
        "peak_anonymous": max(peaks["anonymous"], before["anonymous"]),
        "peak_resident": max(usage, peaks["resident"]),
    }


def open_and_search(settings: Settings) -> dict[str, Any]:
    """Read the index and search with its last parameters; the memory that this adds, anonymous and mapped."""
    contestant, base, folder = _read(settings)
    queries = np.load(settings["queries"])
    _warm_up(contestant, base)
    before = read_memory()
    opened = contestant.open(base, folder)
    find = opened.prepare(opened.points[-1], threads=1)
    for query in queries:
        as_ids(find(query[None]), count=1)
    after = read_memory()
    return {kind: after[kind] - before[kind] for kind in before}


def _warm_up(contestant: Contestant, base: Path) -> None:
    """Load the libraries, which are not memory of the index."""
    if contestant.library in ("hnswlib", "usearch"):
        import_peer(contestant.library)
    few = np.load(base, mmap_mode="r")[:64].copy()
    index = faiss.IndexFlatIP(few.shape[1])
    index.add(few)
    index.search(few, 1)


def _read(settings: Settings) -> tuple[Contestant, Path, Path]:
    return Contestant(**settings["contestant"]), Path(settings["base"]), Path(settings["folder"])


STEPS: dict[str, Callable[[Settings], dict[str, Any]]] = {"build": build, "open": open_and_search}


if __name__ == "__main__":
    print(json.dumps(STEPS[sys.argv[1]](json.load(sys.stdin))))
