"""How hard Milvus must look to meet a recall: measured with vectors that its index lacks, against an exact scan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.progress import Progress
from index.vectors.milvus.collection import Collection
from index.vectors.milvus.plans import MilvusPlan, scale
from index.vectors.products import measure_cosines
from index.vectors.search import MEASURED_K

_DEPTH = MEASURED_K + 16
_TOLERANCE = 1e-6
_SURE = 2  # standard errors
_TIMED_QUERIES = 30


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
    truth = _find_truth(rows, queries)
    curve: list[dict[str, Any]] = []
    for done, effort in enumerate(plan.efforts, start=1):
        parameters = {plan.effort: effort}
        recall, error = _measure_recall(collection, plan, parameters, queries, truth, last=last)
        latency = _time_ms(collection, queries, scale(plan, parameters, depth=_DEPTH), last=last)
        curve.append({
            "parameters": parameters, "recall_at_10": recall, "recall_error": error, "latency_ms_median": latency,
        })  # fmt: skip
        progress(done, len(plan.efforts))
        if recall - _SURE * error >= max(target, 0.999):
            break
    meeting = [point for point in curve if point["recall_at_10"] - _SURE * point["recall_error"] >= target]
    if meeting:
        best = min(meeting, key=lambda point: float(point["latency_ms_median"]))
    else:
        best = max(curve, key=lambda point: float(point["recall_at_10"]))
    return {
        "curve": curve,
        "recall_target": target,
        "queries": len(queries),
        "queries_per_second": _time_batch(
            collection, queries, scale(plan, best["parameters"], depth=_DEPTH), last
        ),
        "own_queries": False,
        **best,
        "target_met": bool(meeting),
    }


def describe_scan(collection: Collection, queries: Vectors) -> dict[str, Any]:
    """What `measure` says, of an index that compares all vectors."""
    return {
        "parameters": {},
        "curve": [],
        "recall_at_10": 1.0,
        "recall_note": "exact by construction, not measured",
        "queries_per_second": _time_batch(collection, queries, {}, None),
        "latency_ms_median": _time_ms(collection, queries, {}, last=None),
    }


def _find_truth(rows: Iterable[tuple[Ids, Vectors]], queries: Vectors) -> Floats:
    """(Q, 10) exact scores of the nearest, in any order."""
    best = np.full((len(queries), MEASURED_K), -np.inf, dtype=np.float32)
    for _, vectors in rows:
        scores = np.concatenate([best, queries @ vectors.T], axis=1)
        best = -np.partition(-scores, MEASURED_K - 1, axis=1)[:, :MEASURED_K]
    return best


def _measure_recall(
    collection: Collection,
    plan: MilvusPlan,
    parameters: Mapping[str, int],
    queries: Vectors,
    truth: Floats,
    *,
    last: int,
) -> tuple[float, float]:
    """Mean Recall@10 and its standard error, as `index.vectors.tuning` counts them."""
    found = collection.search(
        queries, limit=_DEPTH, expression=_up_to(last), parameters=scale(plan, parameters, depth=_DEPTH)
    )
    shares = []
    for (_, vectors), query, wanted in zip(found, queries, truth, strict=True):
        scores = np.sort(measure_cosines(vectors, query))[::-1][:MEASURED_K]
        known = wanted[np.isfinite(wanted)]
        hits = int((scores >= known.min() - _TOLERANCE - 1e-6).sum())
        shares.append(min(hits, len(known)) / len(known))
    total = len(shares) * MEASURED_K
    likely = (sum(shares) * MEASURED_K + 1) / (total + 2)
    least = (likely * (1 - likely) / total) ** 0.5
    return float(np.mean(shares)), float(max(np.std(shares) / len(shares) ** 0.5, least))


def _time_ms(
    collection: Collection, queries: Vectors, parameters: Mapping[str, int], *, last: int | None
) -> float:
    times = []
    for query in queries[:_TIMED_QUERIES]:
        start = time.perf_counter()
        collection.search(query[None], limit=_DEPTH, expression=_up_to(last), parameters=parameters)
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1000)


def _time_batch(
    collection: Collection, queries: Vectors, parameters: Mapping[str, int], last: int | None
) -> float:
    start = time.perf_counter()
    collection.search(queries, limit=_DEPTH, expression=_up_to(last), parameters=parameters)
    return len(queries) / (time.perf_counter() - start)


def _up_to(last: int | None) -> str:
    return "id >= 0" if last is None else f"id <= {last}"
