"""How hard Milvus must look to meet a recall: measured with vectors that its index lacks, against an exact scan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.errors import InputError
from index.progress import Progress
from index.vectors.ann_building import find_reason_for_flat
from index.vectors.ann_config import AnnConfig
from index.vectors.exact import measure_cosines
from index.vectors.kinds import KINDS, count_lists
from index.vectors.milvus.collection import Collection
from index.vectors.search import MEASURED_K
from index.vectors.tuning import SURE, Trial, choose_setting

Build = Callable[[int], Mapping[str, int]]

_DEPTH = MEASURED_K + 16


@dataclass(frozen=True, slots=True)
class MilvusPlan:
    """A kind of index as Milvus has it.

    Attributes:
        type: Milvus's name of it.
        build: what it is built with, of so many vectors.
        effort: Milvus's name of how hard it looks; empty where it looks at all.
        efforts: worth measuring, rising.
        bytes_of_number: that it keeps in memory for each number of a vector.
        keeps_effort: whether the effort is a number of candidates, at least as many as are wanted.
    """

    type: str
    build: Build
    effort: str
    efforts: tuple[int, ...]
    bytes_of_number: int
    keeps_effort: bool


PLANS: Mapping[str, MilvusPlan] = {
    "flat": MilvusPlan("FLAT", lambda count: {}, "", (), 4, False),
    "hnsw": MilvusPlan(
        "HNSW", lambda count: {"M": 24, "efConstruction": 200}, "ef", (32, 64, 128, 256, 512, 1024), 4, True
    ),
    "ivf": MilvusPlan(
        "IVF_SQ8", lambda count: {"nlist": count_lists(count)}, "nprobe", (4, 8, 16, 32, 64, 128, 256), 1, False
    ),
}
"""By the names of `index.vectors.kinds`."""


def choose_kind(count: int, config: AnnConfig) -> tuple[str, str]:
    """The kind of index that so many vectors get, and why."""
    if config.kind is not None and config.kind.name not in PLANS:
        raise InputError(
            f"index_type {config.index_type}: a gallery in Milvus has one of {', '.join(PLANS)}; give another "
            "--index-type"
        )
    reason = find_reason_for_flat(count, config)
    if reason is not None:
        return "flat", reason
    if config.kind is not None:
        return config.kind.name, "asked for"
    if count <= KINDS["hnsw"].most_rows:
        return "hnsw", "the fastest of those that Milvus builds"
    return "ivf", "a graph would take too much memory, or hours to build"


def scale(plan: MilvusPlan, parameters: Mapping[str, int], *, depth: int) -> Mapping[str, int]:
    """The parameters of a search for so many candidates."""
    if not plan.effort:
        return {}
    effort = parameters[plan.effort]
    return {plan.effort: max(effort, depth) if plan.keeps_effort else effort}


def measure(
    collection: Collection,
    plan: MilvusPlan,
    rows: Iterable[tuple[Ids, Vectors]],
    *,
    last: int,
    queries: Vectors,
    target: float,
    progress: Progress,
) -> dict[str, Any]:
    """Measure every effort that is worth it until one surely meets the target; what a manifest says of it.

    Args:
        rows: ids and vectors of all that may be found, which give the truth.
        last: the last of these ids.
        queries: (Q, D) float32 unit vectors that are none of them.
    """

    def search(queries: Vectors, parameters: Mapping[str, int]) -> list[tuple[Ids, Vectors]]:
        wanted = scale(plan, parameters, depth=_DEPTH)
        return collection.search(queries, limit=_DEPTH, expression=f"id <= {last}", parameters=wanted)

    trial, curve = Trial(queries, _find_truth(rows, queries)), []
    for done, effort in enumerate(plan.efforts, start=1):
        parameters = {plan.effort: effort}
        scores = np.full((len(queries), _DEPTH), -np.inf, dtype=np.float32)
        for row, (_, vectors) in enumerate(search(queries, parameters)):
            scores[row, : len(vectors)] = measure_cosines(vectors, queries[row])
        recall, error = trial.measure(-np.sort(-scores, axis=1)[:, :MEASURED_K])
        curve.append({
            "parameters": parameters, "recall_at_10": recall, "recall_error": error,
            "latency_ms_median": trial.time_ms(lambda query, chosen=parameters: search(query, chosen)),  # type: ignore[misc]
        })  # fmt: skip
        progress(done, len(plan.efforts))
        if recall - SURE * error >= max(target, 0.999):
            break
    best, is_met = choose_setting(curve, target=target)
    start = time.perf_counter()
    search(queries, best["parameters"])
    speed = len(queries) / (time.perf_counter() - start)
    return {
        "curve": curve, "recall_target": target, "queries": len(queries), "queries_per_second": speed,
        "own_queries": False, **best, "target_met": is_met,
    }  # fmt: skip


def describe_scan(collection: Collection, queries: Vectors) -> dict[str, Any]:
    """What `measure` says, of an index that compares all vectors."""

    def search(queries: Vectors) -> object:
        return collection.search(queries, limit=_DEPTH, expression="id >= 0", parameters={})

    latency, start = Trial(queries, np.empty((len(queries), 0), np.float32)).time_ms(search), time.perf_counter()
    search(queries)
    return {
        "parameters": {},
        "curve": [],
        "recall_at_10": 1.0,
        "recall_note": "exact by construction, not measured",
        "queries_per_second": len(queries) / (time.perf_counter() - start),
        "latency_ms_median": latency,
    }


def _find_truth(rows: Iterable[tuple[Ids, Vectors]], queries: Vectors) -> Floats:
    """(Q, 10) exact scores of the nearest, in any order."""
    best = np.full((len(queries), MEASURED_K), -np.inf, dtype=np.float32)
    for _, vectors in rows:
        scores = np.concatenate([best, queries @ vectors.T], axis=1)
        best = -np.partition(-scores, MEASURED_K - 1, axis=1)[:, :MEASURED_K]
    return best
