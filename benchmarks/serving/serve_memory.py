"""The memory of the server while 100,000 requests of all kinds are answered: flat, or not?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common.processes import fit_line
from benchmarks.serving.serve_galleries import ServedGallery
from benchmarks.serving.serve_goals import judge_memory
from benchmarks.serving.serve_load import run_load
from benchmarks.serving.serve_peers import K
from benchmarks.serving.serve_requests import ASKING, Material
from benchmarks.serving.serve_servers import run_ours, wait_for

MIX = {"by id": 0.7, "by vector": 0.15, "thumbnail": 0.1, "by upload": 0.05}
CLIENTS = 16
SAMPLES = 1000  # about
_LEAST_SAMPLE_SECONDS, _REQUESTS_A_SECOND = 0.01, 500


def measure_memory(served: ServedGallery, options: argparse.Namespace) -> dict[str, Any]:
    """One server from its start through all requests; every sample is in the record."""
    with run_ours(served.path, log=options.out / "logs" / "ours-memory.log") as server:
        wait_for(server, lambda: ASKING["ready"](Material(server.host, K)))
        document = run_load({
            "url": server.url, "pid": server.pid, "asking": MIX, "clients": CLIENTS, "k": K, "seed": options.seed,
            "ids": served.ids, "vectors": served.queries, "photos": served.photos, "requests": options.requests,
            "sample_seconds": max(_LEAST_SAMPLE_SECONDS, options.requests / _REQUESTS_A_SECOND / SAMPLES),
        })  # fmt: skip
    samples = document.pop("samples")
    described = describe_memory(samples)
    goal = judge_memory(described["rise_bytes"], middle=described["anonymous"]["half-way"])
    return {
        "gallery": served.describe(), "mix": MIX, "load": document, **described, "goals": [goal],
        "samples": samples,
    }  # fmt: skip


def describe_memory(samples: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The line through the anonymous memory of the second half of the requests, and bytes at some moments.

    Raises:
        SystemExit: fewer than three samples in the second half.
    """
    answered = np.array([sample["answered"] for sample in samples], dtype=np.float64)
    anonymous = np.array([sample["anonymous"] for sample in samples], dtype=np.float64)
    half = answered[-1] / 2
    late = answered >= half
    line = fit_line(answered[late], anonymous[late])
    if line is None:
        sys.exit("fewer than 3 samples in the second half are too few for a line; ask for more requests")
    moments = {"start": 0.0, "a tenth": 0.1, "half-way": 0.5, "end": 1.0}
    places = {name: int(np.searchsorted(answered, share * answered[-1])) for name, share in moments.items()}
    return {
        "bytes_per_request": line,
        "rise_bytes": line["slope"] * (answered[-1] - half),
        **{
            kind: {
                **{name: samples[place][kind] for name, place in places.items()},
                "peak": max(sample[kind] for sample in samples),
            }
            for kind in ("anonymous", "resident")
        },
    }
