"""Each contestant of `benchmarks.ann` built, and read again, in a process of its own: seconds, and bytes.

`run_alone(__name__, STEP)` runs one of `STEPS`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.ann.peers import Contestant, as_ids, import_peer
from benchmarks.common.processes import read_memory
from index.threads import usable_cores

Settings = Mapping[str, Any]


def build(settings: Settings) -> dict[str, Any]:
    """Build with all cores and write; seconds of both, and bytes on disk."""
    contestant, base, folder = _read(settings)
    folder.mkdir(parents=True)
    _warm_up(contestant, base)
    rows = contestant.load(base)
    started = time.perf_counter()
    contestant.build(rows, folder, threads=usable_cores())
    seconds = time.perf_counter() - started
    disk_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".json")
    return {"seconds": seconds, "disk_bytes": disk_bytes}


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
