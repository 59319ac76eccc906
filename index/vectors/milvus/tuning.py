"""How hard Milvus must look to meet a recall: measured with vectors that its index lacks, against an exact scan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.progress import Progress
from index.vectors.exact import measure_cosines
from index.vectors.milvus.collection import Collection
from index.vectors.milvus.plans import MilvusPlan, scale
from index.vectors.search import MEASURED_K
from index.vectors.tuning import SURE, Trial, choose_setting

_DEPTH = MEASURED_K + 16


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
