"""An index of `benchmarks.ann` built in a process of its own: seconds, peak memory, bytes."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.ann.peers import Contestant, import_peer
from index.threads import usable_cores


def build(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Build with all cores and write; seconds of both, peak resident memory, and bytes on disk."""
    contestant, base = Contestant(**settings["contestant"]), Path(settings["base"])
    folder = Path(settings["folder"])
    folder.mkdir(parents=True)
    _warm_up(contestant, base)
    rows = contestant.load(base)
    started = time.perf_counter()
    contestant.build(rows, folder, threads=usable_cores())
    seconds = time.perf_counter() - started
    disk_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".json")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak_mib": peak_mib, "disk_bytes": disk_bytes}


def _warm_up(contestant: Contestant, base: Path) -> None:
    """Load the libraries, which takes no time of the build."""
    if contestant.library in ("hnswlib", "usearch"):
        import_peer(contestant.library)
    few = np.load(base, mmap_mode="r")[:64].copy()
    index = faiss.IndexFlatIP(few.shape[1])
    index.add(few)
    index.search(few, 1)


if __name__ == "__main__":
    print(json.dumps(build(json.load(sys.stdin))))
