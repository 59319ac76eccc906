"""Tuning of ANN indexes: the parameters that meet a target recall, measured with unseen queries against a scan."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.faiss_library import faiss_threads
from index.progress import Progress, no_progress
from index.threads import usable_cores
from index.vectors.ann_index import AnnIndex
from index.vectors.search import MEASURED_K, VectorSearch
from index.vectors.stored_rows import RowSet, StoredRows

KEPT_SHARES = (0.5, 0.05, 0.005, 0.0005)  # of the images that filters keep
_TIMED_QUERIES = 100
_ENOUGH_QUERIES = 50
_TIMED_SECONDS = 0.5
_SCORE_TOLERANCE = 1e-6  # an image as similar as the true tenth counts: many are on the web twice
SURE = 2  # standard errors, for 97.5 % confidence
_SCANNED_ROWS = 8192
_RANKED_ROWS = 512
_ALWAYS_INDEX = {"rows_per_effort": 0.0, "rows_per_candidate": 0.0}
_SEED = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """Queries that the index has not seen: (Q, D) vectors, and their (Q, 10) true scores, in any order."""

    queries: Vectors
    truth: Floats

    def recall(self, search: VectorSearch, among: RowSet | None = None) -> tuple[float, float]:
        """Mean Recall@10 and its standard error."""
        scores, _ = search.search(self.queries, k=MEASURED_K, among=among, threads=usable_cores())
        return self.measure(scores)

    def measure(self, scores: Floats) -> tuple[float, float]:
        """As `recall`, of (Q, 10) found scores; the error is never 0, because few queries may find all by chance."""
        wanted = np.isfinite(self.truth).sum(axis=1)
        worst = np.where(np.isfinite(self.truth), self.truth, np.inf).min(axis=1)
        found = (scores >= worst[:, None] - _SCORE_TOLERANCE).sum(axis=1)
        shares = (np.minimum(found, wanted) / np.maximum(wanted, 1))[wanted > 0]
        likely = (found.clip(max=wanted).sum() + 1) / (wanted.sum() + 2)  # Laplace's rule of succession
        least = (likely * (1 - likely) / wanted.sum()) ** 0.5
        return float(shares.mean()), float(max(shares.std() / len(shares) ** 0.5, least))

    def latency_ms(self, search: VectorSearch, among: RowSet | None = None) -> float:
        return self.time_ms(partial(search.search, k=MEASURED_K, among=among))

    def queries_per_second(self, call: Callable[[Vectors], object]) -> float:
        start = time.perf_counter()
        call(self.queries)
        return len(self.queries) / (time.perf_counter() - start)

    def time_ms(self, call: Callable[[Vectors], object]) -> float:
        times: list[float] = []
        for query in self.queries[:_TIMED_QUERIES]:
            start = time.perf_counter()
            call(query[None])
            times.append(time.perf_counter() - start)
            if sum(times) > _TIMED_SECONDS:
                break
        return float(np.median(times) * 1000)


def tune_ann(
    stored: StoredRows, index: AnnIndex, queries: Vectors, *, target: float, progress: Progress = no_progress
) -> dict[str, Any]:
    """Measure an ANN index, and choose the parameters that meet a recall at the lowest latency; its description.

    The truth is a scan of the indexed rows. The mean recall less two standard errors must meet the target, so that
    similar queries meet it too. `curve` has the Pareto front of settings, `costs` what a scan passes in the same time,
    `filtered` recall and latency with filters.

    Args:
        queries: (Q, D) float32 unit vectors that the index does not hold.
        target: share of the true 10 nearest.
    """
    truth = _scan(stored, queries, _choose(index.rows, len(stored)))
    new = truth[:, 0] < 1 - _SCORE_TOLERANCE  # copies of what is indexed are found too easily
    trial = Trial(queries[new], truth[new]) if new.sum() >= _ENOUGH_QUERIES else Trial(queries, truth)
    curve = _sweep(stored, index, trial, progress=progress)
    choice = _describe_choice(stored, index, trial, curve=curve, target=target, filtered_rows=index.rows)
    return {**choice, "queries": len(trial.queries)}


def choose_again(search: VectorSearch, *, described: Mapping[str, Any], queries: Vectors) -> dict[str, Any]:
    """Measure the latencies of a tuned index again, and choose its parameters again; the changed entries.

    Recall is not measured again: `queries`, the held-out vectors of the build, are members now.
    """
    assert search.index is not None
    trial = Trial(queries, np.empty((len(queries), 0), np.float32))
    curve = []
    for point in described["curve"]:
        again = _open_setting(search.stored, search.index, point["parameters"])
        curve.append({**point, "latency_ms_median": trial.latency_ms(again)})
    return _describe_choice(
        search.stored,
        search.index,
        trial,
        curve=_keep_front(curve),
        target=described["recall_target"],
        filtered_rows=np.setdiff1d(search.index.rows, search.held_out),  # queries must not find themselves
    )


def _describe_choice(
    stored: StoredRows, index: AnnIndex, trial: Trial, *, curve: list[dict[str, Any]], target: float, filtered_rows: Ids
) -> dict[str, Any]:
    chosen, is_met = choose_setting(curve, target=target)
    costs = _compare_costs(stored, index, trial, chosen["parameters"])
    search = _open_setting(stored, index, chosen["parameters"], costs=costs)
    described = {
        "parameters": chosen["parameters"],
        "costs": costs,
        "curve": curve,
        "recall_at_10": chosen["recall_at_10"],
        "recall_error": chosen["recall_error"],
        "latency_ms_median": trial.latency_ms(search),
        "queries_per_second": trial.queries_per_second(partial(search.search, k=MEASURED_K, threads=usable_cores())),
        "target_met": is_met,
        "filtered": list[dict[str, float]](),
    }
    for share in KEPT_SHARES:  # filters that keep a random share of the rows
        size = max(1, round(share * len(filtered_rows)))
        kept = np.random.default_rng(_SEED).choice(filtered_rows, size=size, replace=False)
        among = _choose(kept, len(stored), indexed=index.rows)
        filtered = Trial(trial.queries, _scan(stored, trial.queries, among))
        recall, error = filtered.recall(search, among)
        latency = filtered.latency_ms(search, among)
        described["filtered"].append(
            {"kept": share, "recall_at_10": recall, "recall_error": error, "latency_ms_median": latency}
        )
    return described


def _open_setting(
    stored: StoredRows, index: AnnIndex, parameters: Mapping[str, int], *, costs: Mapping[str, float] = _ALWAYS_INDEX
) -> VectorSearch:
    """The index with these parameters and nothing beside it; without costs it never falls back to a scan."""
    described = {"parameters": parameters, "costs": costs}
    return VectorSearch(stored, index=index, described=described, beside=np.empty(0, dtype=np.int64))


def _keep_front(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Pareto front: points better than all faster ones, the fastest first."""
    front: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda point: (point["latency_ms_median"], -point["recall_at_10"])):
        if not front or point["recall_at_10"] > front[-1]["recall_at_10"]:
            front.append(point)
    return front


def choose_setting(curve: Sequence[dict[str, Any]], *, target: float) -> tuple[dict[str, Any], bool]:
    """The fastest point that surely meets a target, or else the best one; and whether it meets it."""
    meeting = [point for point in curve if point["recall_at_10"] - SURE * point["recall_error"] >= target]
    if meeting:
        return min(meeting, key=lambda point: point["latency_ms_median"]), True
    return max(curve, key=lambda point: point["recall_at_10"]), False


def describe_flat(queries: Vectors, call: Callable[[Vectors], object]) -> dict[str, Any]:
    """The description of a scan, measured by (Q, D) queries."""
    trial = Trial(queries, np.empty((len(queries), 0), np.float32))
    return {
        "parameters": {},
        "curve": [],
        "recall_at_10": 1.0,
        "recall_note": "exact by construction, not measured",
        "queries_per_second": trial.queries_per_second(call),
        "latency_ms_median": trial.time_ms(call),
    }


def _choose(rows: Ids, count: int, *, indexed: Ids | None = None) -> RowSet:
    """Some of so many stored rows."""
    mask = np.zeros(count, dtype=bool)
    mask[rows] = True
    return RowSet.of(mask, indexed=indexed)


def _scan(stored: StoredRows, queries: Vectors, among: RowSet) -> Floats:
    return VectorSearch(stored).search(queries, k=MEASURED_K, among=among, threads=usable_cores())[0]


def _sweep(stored: StoredRows, index: AnnIndex, trial: Trial, *, progress: Progress) -> list[dict[str, Any]]:
    """The Pareto front of the kind's settings; those that cannot be better than measured ones are skipped."""
    from faiss.contrib.evaluation import OperatingPointsWithRanges

    points, kind, rows = OperatingPointsWithRanges(), index.kind, len(index.rows)
    efforts, candidates = kind.sweep(index.most_effort, is_reduced=index.is_reduced)
    points.add_range(kind.effort, efforts)
    points.add_range("candidates", [number for number in candidates if number <= rows] or [rows])
    measured, count = list[dict[str, Any]](), points.num_experiments()
    # The first, the last, then from the middle outwards: early results rule out many later ones.
    order = sorted(range(count), key=lambda number: (0 < number < count - 1, abs(number - count / 2)))
    for done, number in enumerate(order, start=1):
        key = points.cno_to_key(number)
        parameters = points.get_parameters(key)
        is_possible = not kind.keeps_effort or parameters[kind.effort] >= parameters["candidates"]
        if is_possible and points.should_run_experiment(key):  # else it is slower than a point that is as good
            search = _open_setting(stored, index, parameters)
            (recall, error), latency = trial.recall(search), trial.latency_ms(search)
            points.add_operating_point(key, recall, latency)
            found = {"recall_at_10": recall, "recall_error": error, "latency_ms_median": latency}
            measured.append({"parameters": parameters, **found})
        progress(done, count)
    return _keep_front(measured)


def _compare_costs(
    stored: StoredRows, index: AnnIndex, trial: Trial, parameters: Mapping[str, int]
) -> dict[str, float]:
    """The rows that a scan passes in the time of one more effort, or of ranking one more candidate."""
    generator = np.random.default_rng(_SEED)
    rows = np.sort(generator.choice(index.rows, size=min(_SCANNED_ROWS, len(index.rows)), replace=False))
    among, effort = _choose(rows, len(stored)), parameters[index.kind.effort]
    with faiss_threads(1):
        scan = trial.time_ms(lambda query: stored.scan(query, k=MEASURED_K, among=among)) / len(rows)
        probe = trial.time_ms(lambda query: index.search(query, k=MEASURED_K, effort=effort)) / effort
    search, candidates = VectorSearch(stored), generator.permutation(rows)[:_RANKED_ROWS]
    rank = trial.time_ms(lambda query: search.rank(query[0], candidates)) / len(candidates)
    return {"rows_per_effort": probe / scan, "rows_per_candidate": rank / scan}
