"""What measuring says of an index; no time is ever asserted, only how times are used."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from index.faiss_library import faiss_threads
from index.vectors.ann_building import tune_ann
from index.vectors.ann_index import AnnIndex, build_ann
from index.vectors.kinds import AnnPlan
from index.vectors.stored_rows import StoredRows
from tests.index.vector_sources import VectorSource, exact_scores, measure_recall, split_rows, spread_ids

pytestmark = pytest.mark.usefixtures("one_core")
ROWS, WIDTH, ASKING = 2000, 32, 200
FACTORIES = {"hnsw": "HNSW16,SQ8", "ivf": "IVF64,SQ8"}


@dataclass
class Tuned:
    """An index over all rows but those that asked, and what was said of it."""

    stored: StoredRows
    vectors: np.ndarray
    asking: np.ndarray
    index: AnnIndex
    described: dict[str, Any]


@pytest.fixture(scope="module")
@faiss_threads(1)
def tuned_indexes() -> dict[str, Tuned]:
    vectors, _ = VectorSource(width=WIDTH, decay=0.3).draw_gallery(ROWS, seed=5)
    stored = StoredRows.of(split_rows(vectors, spread_ids(ROWS), ends=[999]))
    asking = np.sort(np.random.default_rng(1).choice(ROWS, size=ASKING, replace=False))
    rows = np.setdiff1d(np.arange(ROWS), asking)
    tuned = {}
    for kind, factory in FACTORIES.items():
        index = build_ann(AnnPlan(kind, factory, None, 0, ""), stored, rows, seed=0)
        described = tune_ann(stored, index, vectors[asking], target=0.95)
        tuned[kind] = Tuned(stored, vectors, asking, index, described)
    return tuned


@pytest.fixture(params=list(FACTORIES))
def tuned(request: pytest.FixtureRequest, tuned_indexes: dict[str, Tuned]) -> Tuned:
    return tuned_indexes[request.param]


def test_the_fastest_setting_that_surely_meets_the_target_is_chosen(tuned: Tuned) -> None:
    described = tuned.described
    meeting = [each for each in described["curve"] if each["recall_at_10"] - 2 * each["recall_error"] >= 0.95]
    assert described["target_met"] is True
    fastest = min(meeting, key=lambda point: point["latency_ms_median"])
    assert described["parameters"] == fastest["parameters"]
    assert described["recall_at_10"] == fastest["recall_at_10"]
    assert described["recall_error"] == fastest["recall_error"]


def test_every_setting_of_the_curve_is_better_than_all_faster_ones(tuned: Tuned) -> None:
    curve = tuned.described["curve"]
    latencies, recalls = ([point[name] for point in curve] for name in ("latency_ms_median", "recall_at_10"))
    assert latencies == sorted(latencies)
    assert all(earlier < later for earlier, later in pairwise(recalls))
    names = {tuned.index.kind.effort, "candidates"}
    assert all(set(point["parameters"]) == names for point in curve)
    assert recalls[-1] >= 0.99
    if tuned.index.type == "hnsw":  # a graph never keeps fewer than it gives
        assert all(point["parameters"]["efSearch"] >= point["parameters"]["candidates"] for point in curve)


def test_what_is_said_of_every_setting_is_what_it_finds(tuned: Tuned) -> None:
    """Among the indexed rows: those that ask are stored too, and must not find themselves."""
    queries = tuned.vectors[tuned.asking]
    truth = exact_scores(queries, tuned.vectors)
    truth[:, tuned.asking] = -np.inf
    new = truth.max(axis=1) < 1 - 1e-6  # copies of what is indexed are found too easily
    assert 50 <= new.sum() < len(new)
    assert tuned.described["queries"] == new.sum()
    for point in tuned.described["curve"]:
        parameters = point["parameters"]
        effort, depth = parameters[tuned.index.kind.effort], parameters["candidates"]
        _, positions = tuned.index.search(queries, k=depth, effort=effort)
        own = np.take_along_axis(truth, np.maximum(positions, 0), axis=1)
        own[positions < 0] = -np.inf
        ranked = np.take_along_axis(positions, np.argsort(-own, axis=1)[:, :10], axis=1)
        found = np.where(ranked < 0, -1, tuned.stored.ids[ranked])
        short = ((positions >= 0).sum(axis=1) < 10) & new  # then a scan answers, with all
        recall = measure_recall(found[new & ~short], truth[new & ~short], tuned.stored.ids, k=10)
        expected = (recall * (new & ~short).sum() + short.sum()) / new.sum()
        assert point["recall_at_10"] == pytest.approx(expected, abs=1e-9)


def test_a_target_that_is_not_met_is_said_and_the_best_setting_taken(tuned_indexes: dict[str, Tuned]) -> None:
    """One or two lists of 64 tell little."""
    tuned = tuned_indexes["ivf"]
    index = AnnIndex(tuned.index.faiss_index, "ivf", tuned.index.rows)
    index.kind = replace(index.kind, efforts=(1, 2))
    described = tune_ann(tuned.stored, index, tuned.vectors[tuned.asking], target=0.95)
    assert described["target_met"] is False
    best = max(described["curve"], key=lambda point: point["recall_at_10"])
    assert described["recall_at_10"] == best["recall_at_10"] < 0.95
    assert described["parameters"] == best["parameters"]
