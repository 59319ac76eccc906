"""What building our index takes: the peak of a process of its own, with the vectors mapped from their file."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.ann.ann_bench import AnnBench
from benchmarks.ann.ann_peers import OURS


def measure_memory(bench: AnnBench) -> dict[str, Any]:
    """Build ours, or read what its build said."""
    ours = next(each for each in bench.contestants if each.name == OURS)
    built = bench.build(ours)
    described = json.loads((bench.find_built(ours) / "described.json").read_text())
    count, width = bench.base.shape
    return {"vectors": count, "width": width, "build": built, "described": described}
