"""Building an ANN index: choose its kind, build it, measure it with held-out vectors, choose parameters, write it."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.errors import InputError
from index.faiss_library import faiss_threads
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.threads import usable_cores
from index.vectors.ann_config import AnnConfig
from index.vectors.ann_index import AnnIndex, build_ann, choose_held_out, extend_ann, write_ann
from index.vectors.kinds import KINDS, AnnPlan, IndexKind
from index.vectors.search import MEASURED_K, VectorSearch
from index.vectors.shards import VectorRows
from index.vectors.stored_rows import RowSet, StoredRows
from index.versions.manifest import INDEX_NAME

FLAT_ROWS = 100_000
MIN_ROWS = 1_000  # of an index that is not exact: fewer give too few queries to measure it
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

logger = logging.getLogger(__name__)
_SEED = 0
_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05
_WIDE = 128  # only vectors of more numbers are worth a rotation
_KEPT_ENERGY = 0.85
_WIDTH_STEP = 32
_REDUCED_SHARE = 0.7  # of the width, at most: else little is saved
_SAMPLE = 16_384
_SCANNED = 100  # vectors that measure a scan

_TIMED_QUERIES = 100
_ENOUGH_QUERIES = 50
_TIMED_SECONDS = 0.5
_SCORE_TOLERANCE = 1e-6  # a hit as similar as the true tenth counts as found (web duplicates tie)
SURE = 2  # standard errors, for 97.5 % confidence
_SCANNED_ROWS = 8192
_RANKED_ROWS = 512
_ALWAYS_INDEX = {"rows_per_effort": 0.0, "rows_per_candidate": 0.0}


def choose_ann(
    *, count: int, width: int, config: AnnConfig, reduced_width: int | None = None, machine_bytes: int | None = None
) -> AnnPlan:
    """The ANN index for `count` vectors; `reduced_width` is the number of rotated dimensions that suffices."""
    kinds, reason = list_kinds(count, config)
    plans = [kind.plan(count, width, reduced_width) for kind in kinds]
    if kinds[0].is_exact:
        return replace(plans[0], reason=reason)
    limit = config.memory_bytes or (machine_bytes or machine_memory()) // 2
    for plan in plans:
        if plan.memory_bytes <= limit or (plan is plans[-1] and not config.memory_limit):
            return replace(plan, reason=reason or plan.reason)
    smallest = min(plan.memory_bytes for plan in plans)
    otherwise = "" if config.index_type == "auto" else ", or --index-type auto"
    raise InputError(
        f"an index of {count:,} vectors of {width} numbers takes at least {smallest:,} bytes as "
        f"{config.index_type}, {limit:,} are allowed; allow more, also for a finished gallery, with "
        f"`retrieval index tune GALLERY --memory-limit SIZE`{otherwise}"
    )


def list_kinds(count: int, config: AnnConfig) -> tuple[Sequence[IndexKind], str]:
    """The kinds for so many vectors, the first choice first; and the reason, empty where it is the chosen kind's."""
    flat, asked = KINDS["flat"], KINDS.get(config.index_type)
    if asked is None and count <= FLAT_ROWS:
        return [flat], f"up to {FLAT_ROWS:,} images exact search is fast enough"
    if asked is not flat and count < MIN_ROWS:
        return [flat], f"fewer than {MIN_ROWS:,} images, too few to measure another index with"
    if asked is not None:
        return [asked], "asked for"
    return [kind for kind in KINDS.values() if not kind.is_exact and count <= kind.most_rows], ""


def machine_memory() -> int:
    """Bytes of memory of the machine or the container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        path = Path(name)
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdigit():
            memory = min(memory, int(text))
    return memory


def build_ann_index(
    shards: Sequence[VectorRows], *, config: AnnConfig, folder: Path, begin_step: BeginStep = no_steps
) -> dict[str, Any]:
    """Build an ANN index without held-out vectors, measure it by these, write it; its entry."""
    stored = StoredRows.of(shards)
    with faiss_threads(usable_cores()):
        axes = None if list_kinds(len(stored), config)[0][0].is_exact else find_reduced_axes(stored)
        reduced_width = None if axes is None else len(axes)
        plan = choose_ann(count=len(stored), width=stored.width, config=config, reduced_width=reduced_width)
        described = {
            "type": plan.type,
            "factory": plan.full_factory,
            "reason": plan.reason,
            "memory_bytes": plan.memory_bytes,
            "shards": len(shards),
            **asdict(config),
        }
        if KINDS[plan.type].is_exact:
            queries = stored.gather(np.arange(0, len(stored), max(1, len(stored) // _SCANNED)))
            search = partial(VectorSearch(stored).search, k=MEASURED_K, threads=usable_cores())
            return {**described, **describe_flat(queries, search)}
        size = f"{plan.memory_bytes / 1e9:.1f} GB of memory"
        logger.info("the ANN index %s of %s vectors takes about %s", plan.full_factory, f"{len(stored):,}", size)
        held_out = choose_held_out(len(stored), count_held_out(len(stored)))
        rows = np.setdiff1d(np.arange(len(stored)), held_out, assume_unique=True)
        index = build_ann(plan, stored, rows, axes=axes, seed=_SEED, progress=begin_step("Building index"))
        measuring = begin_step("Measuring index")
        measured = tune_ann(stored, index, stored.gather(held_out), target=config.recall_target, progress=measuring)
        write_ann(extend_ann(index, stored, held_out), folder / INDEX_NAME)
        return {**described, "held_out": len(held_out), **measured}


def count_held_out(count: int) -> int:
    return min(_HELD_OUT, int(_HELD_OUT_SHARE * count))


def find_reduced_axes(stored: StoredRows) -> Vectors | None:
    """(d, D) float32 orthonormal axes with 85 % of the vectors' energy, if d is clearly less than D.

    They are eigenvectors of the second moment of a sample, not of its covariance, because inner products count.
    """
    if stored.width <= _WIDE:
        return None
    chosen = np.random.default_rng(_SEED).choice(len(stored), size=min(_SAMPLE, len(stored)), replace=False)
    sample = stored.gather(np.sort(chosen)).astype(np.float64)
    energies, axes = np.linalg.eigh(sample.T @ sample)
    held = np.cumsum(energies[::-1]) / energies.sum()
    width = -(-(int(np.searchsorted(held, _KEPT_ENERGY)) + 1) // _WIDTH_STEP) * _WIDTH_STEP
    return axes[:, ::-1].T[:width].astype(np.float32) if width <= _REDUCED_SHARE * stored.width else None


@dataclass(frozen=True, slots=True)
class Trial:
    """Queries that the index has not seen: (Q, D) vectors, and their (Q, 10) true scores, in any order."""

    queries: Vectors
    truth: Floats

    def recall(self, scores: Floats) -> tuple[float, float]:
        """Mean Recall@10 of (Q, 10) found scores, and its standard error: never 0, as few queries may find all."""
        wanted = np.isfinite(self.truth).sum(axis=1)
        worst = np.where(np.isfinite(self.truth), self.truth, np.inf).min(axis=1)
        found = (scores >= worst[:, None] - _SCORE_TOLERANCE).sum(axis=1)
        shares = (np.minimum(found, wanted) / np.maximum(wanted, 1))[wanted > 0]
        likely = (found.clip(max=wanted).sum() + 1) / (wanted.sum() + 2)  # Laplace's rule of succession
        least = (likely * (1 - likely) / wanted.sum()) ** 0.5
        return float(shares.mean()), float(max(shares.std() / len(shares) ** 0.5, least))

    def latency_ms(self, search: VectorSearch) -> float:
        return self.time_ms(partial(search.search, k=MEASURED_K))

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
    """Measure an ANN index by (Q, D) unit queries that it lacks, and choose the fastest parameters; its description.

    The mean recall less two standard errors must meet the target, so that similar queries meet it too.
    """
    among = _choose(index.rows, len(stored))
    truth = VectorSearch(stored).search(queries, k=MEASURED_K, among=among, threads=usable_cores())[0]
    new = truth[:, 0] < 1 - _SCORE_TOLERANCE  # copies of what is indexed are found too easily
    trial = Trial(queries[new], truth[new]) if new.sum() >= _ENOUGH_QUERIES else Trial(queries, truth)
    curve = _sweep(stored, index, trial, progress=progress)
    chosen, is_met = choose_setting(curve, target=target)
    costs = _compare_costs(stored, index, trial, chosen["parameters"])
    search = _open_setting(stored, index, chosen["parameters"], costs=costs)
    return {
        "parameters": chosen["parameters"],
        "costs": costs,
        "curve": curve,
        "recall_at_10": chosen["recall_at_10"],
        "recall_error": chosen["recall_error"],
        "latency_ms_median": trial.latency_ms(search),
        "queries_per_second": trial.queries_per_second(partial(search.search, k=MEASURED_K, threads=usable_cores())),
        "target_met": is_met,
        "queries": len(trial.queries),
    }


def _open_setting(
    stored: StoredRows, index: AnnIndex, parameters: Mapping[str, int], *, costs: Mapping[str, float] = _ALWAYS_INDEX
) -> VectorSearch:
    """The index with these parameters and nothing beside it; without costs it never falls back to a scan."""
    described = {"parameters": parameters, "costs": costs}
    return VectorSearch(stored, index=index, described=described, unindexed=np.empty(0, dtype=np.int64))


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


def _choose(rows: Ids, count: int) -> RowSet:
    """Some of so many stored rows."""
    mask = np.zeros(count, dtype=bool)
    mask[rows] = True
    return RowSet.of(mask)


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
            scores, _ = search.search(trial.queries, k=MEASURED_K, threads=usable_cores())
            (recall, error), latency = trial.recall(scores), trial.latency_ms(search)
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
