"""Recall@10 against queries a second: everybody's parameters in turns, one query after another and all at once."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.ann.bench import AnnBench
from benchmarks.ann.peers import OURS, Find, Opened, as_ids
from benchmarks.ann.truth import Truth, find_recall
from index.arrays import Vectors
from index.threads import usable_cores

Point = Mapping[str, float]  # what some parameters gave: `recall`@10 and `rate`, queries a second
WARM_UP = 50  # queries before each clock
MOST_SECONDS = 4.0  # for one query after another; who is slower answers fewer
MODES = ("single", "batch")


def measure_curves(bench: AnnBench, *, rounds: int) -> dict[str, Any]:
    """Build everybody, take turns, and compare our points with the peers' fronts."""
    truth = bench.find_truth()
    builds = {each.name: bench.build(each) for each in bench.contestants}
    opened = bench.open_built(bench.contestants)
    readings = [
        bench.measure(f"curves-{number}-{name}", partial(_turn, bench, opened[name], truth, name=name, number=number))
        for number in range(rounds)
        for name in opened
    ]
    rows = [
        {"contestant": each.name, "family": each.family, "points": _take_medians(readings[place :: len(opened)])}
        for place, each in enumerate(bench.contestants)
    ]
    count, width = bench.base.shape
    return {
        "vectors": count,
        "width": width,
        "queries": len(bench.queries),
        "builds": builds,
        "rounds": rounds,
        "rows": rows,
        "fronts": {mode: find_fronts(rows, mode) for mode in MODES},
        "described": getattr(opened.get(OURS), "described", None),
    }


def _turn(bench: AnnBench, opened: Opened, truth: Truth, *, name: str, number: int) -> dict[str, Any]:
    base, points = np.array(bench.base), []
    for parameters in opened.points:
        single = time_singles(opened.prepare(parameters, threads=1), bench.queries)
        batch = time_batch(opened.prepare(parameters, threads=usable_cores()), bench.queries)
        points.append(
            {
                "parameters": parameters,
                "single": describe(single, base, bench.queries, truth=truth),
                "batch": describe(batch, base, bench.queries, truth=truth),
            }
        )
    print(f"  round {number + 1}: {name}", file=sys.stderr, flush=True)
    return {"points": points}


@dataclass(frozen=True, slots=True)
class Answers:
    """(n, 10) `ids` found for the first n queries; their rate a second; and the median latency where there is any."""

    ids: np.ndarray[Any, np.dtype[np.int64]]
    rate: float
    median_ms: float | None = None


def time_singles(find: Find, queries: Vectors, *, most_seconds: float = MOST_SECONDS) -> Answers:
    """One query after another; the rate is that of the median latency."""
    for row in range(-min(WARM_UP, len(queries)), 0):
        find(queries[row][None])
    latencies: list[int] = []
    found = []
    ending = time.perf_counter() + most_seconds
    for row in range(len(queries)):
        query = queries[row : row + 1]
        started = time.perf_counter_ns()
        found.append(find(query))
        latencies.append(time.perf_counter_ns() - started)
        if time.perf_counter() > ending:
            break
    ids = np.concatenate([as_ids(each, count=1) for each in found])
    median_ms = float(np.median(latencies)) / 1e6
    return Answers(ids, 1000 / median_ms, median_ms)


def time_batch(find: Find, queries: Vectors) -> Answers:
    """All queries in one call."""
    find(queries[:WARM_UP])
    started = time.perf_counter()
    found = find(queries)
    seconds = time.perf_counter() - started
    return Answers(as_ids(found, count=len(queries)), len(queries) / seconds)


def describe(answers: Answers, base: Vectors, queries: Vectors, *, truth: Truth) -> dict[str, Any]:
    """Recall with ties, and the times."""
    count = len(answers.ids)
    times = {key: value for key, value in asdict(answers).items() if key != "ids" and value is not None}
    return {
        "queries": count,
        "recall": find_recall(base, queries[:count], answers.ids, truth=truth.take(count)),
        **times,
    }


def _take_medians(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each point of a contestant over the rounds: the medians of what changes with time, and the rates themselves."""
    points = []
    for same in zip(*(each["points"] for each in rounds), strict=True):
        point: dict[str, Any] = {"parameters": same[0]["parameters"]}
        for mode in MODES:
            readings = [each[mode] for each in same]
            medians = {
                key: statistics.median(reading[key] for reading in readings)
                for key in ("rate", "median_ms")
                if key in readings[0]
            }
            point[mode] = {**readings[0], **medians, "rates": [reading["rate"] for reading in readings]}
        points.append(point)
    return points


def find_fronts(rows: Sequence[Mapping[str, Any]], mode: str) -> dict[str, list[Point]]:
    """The front of each family."""
    points: dict[str, list[Point]] = {}
    for row in rows:
        found = [{key: point[mode][key] for key in ("recall", "rate")} for point in row["points"]]
        points.setdefault(row["family"], []).extend(found)
    return {family: find_front(each) for family, each in points.items()}


def find_front(points: Iterable[Point]) -> list[Point]:
    """Those that no other one beats in both, by rising recall and so falling rate."""
    front: list[Point] = []
    for point in sorted(points, key=lambda each: (-each["recall"], -each["rate"])):
        if not front or point["rate"] > front[-1]["rate"]:
            front.append(point)
    return front[::-1]


def rate_at(front: Sequence[Point], recall: float) -> float | None:
    """The front's rate at a recall: between two points log-linear, before the first that of the first.

    None where it does not reach the recall.
    """
    if not front or recall > front[-1]["recall"]:
        return None
    recalls, logs = [point["recall"] for point in front], [np.log(point["rate"]) for point in front]
    return float(np.exp(np.interp(recall, recalls, logs)))
