import json
import logging
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from index.errors import InputError
from index.faiss_library import faiss_threads
from index.vectors.ann_building import (
    FLAT_ROWS,
    MIN_ROWS,
    build_ann_index,
    choose_ann,
    count_held_out,
    find_reduced_axes,
    machine_memory,
    tune_ann,
)
from index.vectors.ann_config import AnnConfig
from index.vectors.ann_index import AnnIndex, build_ann, choose_held_out
from index.vectors.kinds import INDEX_TYPES, KINDS, AnnPlan
from index.vectors.search import VectorSearch
from index.vectors.shards import VectorRows
from index.vectors.stored_rows import StoredRows
from tests.index.vector_sources import VectorSource, exact_scores, measure_recall, split_rows, spread_ids, unit

pytestmark = pytest.mark.usefixtures("one_core")
ROWS, WIDTH = 2000, 32
SOURCE = VectorSource(width=WIDTH, decay=0.3)


def test_the_held_out_vectors_stay_the_same_ones() -> None:
    """Index files rest on the choice: whoever reads one computes it again."""
    assert choose_held_out(1150, 57)[:10].tolist() == [0, 15, 39, 54, 79, 103, 118, 143, 158, 182]


@pytest.fixture(scope="module")
def shards() -> list[VectorRows]:
    vectors, _ = SOURCE.draw_gallery(ROWS, seed=6)
    return split_rows(vectors, spread_ids(ROWS), ends=[700])


def config(index_type: str, **options: object) -> AnnConfig:
    return AnnConfig(index_type=index_type, **{"recall_target": 0.9, **options})


@pytest.mark.parametrize("index_type", ["hnsw", "ivf"])
def test_those_that_ask_come_into_the_index_after_they_have_asked(
    shards: list[VectorRows], index_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, seen = StoredRows.of(shards), []

    def watch(stored: StoredRows, index: AnnIndex, queries: np.ndarray, **options: object) -> dict[str, object]:
        """What is measured, and what the index holds at that moment."""
        held = index.faiss_index.ntotal
        _, found = index.search(queries, k=1, effort=index.most_effort)
        seen.append((held, index.rows.copy(), queries, found[:, 0]))
        return {
            "parameters": {"efSearch": 10, "nprobe": 1, "candidates": 10},
            "costs": {"rows_per_effort": 1, "rows_per_candidate": 1},
        }

    monkeypatch.setattr("index.vectors.ann_building.tune_ann", watch)
    described = build_ann_index(shards, config=config(index_type), folder=tmp_path)
    [(held, rows, queries, nearest)] = seen
    held_out = choose_held_out(ROWS, count_held_out(ROWS))
    assert len(np.unique(held_out)) == 100
    assert held == len(rows) == ROWS - len(held_out)
    assert not np.isin(held_out, rows).any()
    assert np.array_equal(queries, stored.gather(held_out))
    assert not np.isin(nearest, held_out).any()
    assert faiss.read_index(str(tmp_path / "index.faiss")).ntotal == ROWS
    search = VectorSearch.open(shards, folder=tmp_path, described=described)
    assert sorted(search.index.rows.tolist()) == list(range(ROWS))
    every = stored.gather(np.arange(ROWS))
    asking = every[::7]
    _, found = search.index.search(asking, k=100, effort=ROWS if index_type == "hnsw" else search.index.most_effort)
    exact = np.take_along_axis(exact_scores(asking, every), found, axis=1).max(axis=1)
    assert np.mean(exact >= 1 - 1e-6) > 0.99  # every number stands for its own row


def test_a_flat_index_has_no_file(shards: list[VectorRows], tmp_path: Path) -> None:
    described = build_ann_index(shards, config=config("auto"), folder=tmp_path)
    assert described["type"] == "flat"
    assert described["recall_at_10"] == 1.0
    assert list(tmp_path.iterdir()) == []
    assert json.loads(json.dumps(described)) == described
    search = VectorSearch.open(shards, folder=tmp_path, described=described)
    assert search.index is None


@pytest.mark.parametrize(("index_type", "count"), [("hnsw", 1), ("ivf", 999), ("hnsw", 1000), ("ivf", 1000)])
def test_few_vectors_even_if_all_are_the_same_can_be_searched(index_type: str, count: int, tmp_path: Path) -> None:
    for vectors in (SOURCE.draw(count, seed=8)[0], np.repeat(SOURCE.draw(1, seed=1)[0], count, axis=0)):
        shards = split_rows(vectors, spread_ids(count), ends=[])
        (folder := tmp_path / str(vectors[-1, 0])).mkdir()
        described = build_ann_index(shards, config=config(index_type), folder=folder)
        assert described["type"] == (index_type if count >= 1000 else "flat")
        scores, found = VectorSearch.open(shards, folder=folder, described=described).search(vectors[:3], k=5)
        assert (np.isfinite(scores).sum(axis=1) == min(5, count)).all()
        assert all(len(set(row.tolist())) == len(row) for row in found[:, : min(5, count)])
        assert np.mean(scores[:, 0] >= 1 - 1e-6) >= 2 / 3
        (again := tmp_path / f"again{vectors[-1, 0]}").mkdir()  # where one thread writes the same files
        build_ann_index(shards, config=config(index_type), folder=again)
        assert [file.read_bytes() for file in again.iterdir()] == [file.read_bytes() for file in folder.iterdir()]


def test_no_memory_is_an_error_before_anything_is_written(shards: list[VectorRows], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--memory-limit"):
        build_ann_index(shards, config=config("ivf", memory_limit="1kB"), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_axes_are_found_where_few_hold_nearly_all() -> None:
    def store(vectors: np.ndarray) -> StoredRows:
        return StoredRows.of(split_rows(vectors, spread_ids(len(vectors)), ends=[]))

    random = np.random.default_rng(0)
    assert find_reduced_axes(store(unit(random.normal(size=(1000, 160))))) is None  # all numbers weigh the same
    narrow = unit(random.normal(size=(1000, 128)) * 0.5 ** np.arange(128))
    assert find_reduced_axes(store(narrow)) is None
    vectors = VectorSource(width=160, decay=1.0).draw(1000, seed=0)[0]
    axes = find_reduced_axes(store(vectors))
    assert axes.shape == (32, 160)
    assert axes.dtype == np.float32
    assert np.allclose(axes @ axes.T, np.eye(32), atol=1e-5)
    held = ((vectors @ axes.T) ** 2).sum() / (vectors**2).sum()
    best = np.linalg.svd(vectors.astype(np.float64), compute_uv=False)
    assert held >= 0.85
    assert held == pytest.approx((best[:32] ** 2).sum() / (best**2).sum(), abs=1e-4)


def _train() -> np.ndarray:
    """The centres of eight lists."""
    index = faiss.index_factory(16, "IVF8,Flat", faiss.METRIC_INNER_PRODUCT)
    KINDS["ivf"].train(index, VectorSource(width=16).draw(400, seed=0)[0])
    assert index.is_trained
    assert index.clustering_index is None
    return index.quantizer.reconstruct_n(0, 8)


def test_the_cpu_replaces_a_full_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("cudaMalloc error out of memory [2]")

    plain = _train()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", refuse, raising=False)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(_train(), plain)
    assert "faiss cannot train on the GPU (cudaMalloc error out of memory [2]): the CPU does" in caplog.text


GB = 10**9


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_too_few_to_measure_with_are_scanned_whatever_is_asked(index_type: str) -> None:
    config = AnnConfig(index_type=index_type)
    assert choose_ann(count=MIN_ROWS - 1, width=64, config=config, machine_bytes=GB).type == "flat"
    least = choose_ann(count=MIN_ROWS, width=64, config=config, machine_bytes=GB)
    assert least.type == ("flat" if index_type == "auto" else index_type)


@pytest.mark.parametrize(
    ("count", "limit", "kinds"),
    [
        (FLAT_ROWS + 1, "10GB", {"hnsw"}),
        (1_000_000, "600MB", {"ivf"}),
        (50_000_000, "100GB", {"ivf"}),  # a graph of so many takes hours
    ],
)
def test_the_fastest_that_fits_is_taken(count: int, limit: str, kinds: set[str]) -> None:
    config = AnnConfig(memory_limit=limit)
    plan = choose_ann(count=count, width=512, config=config)
    assert plan.type in kinds
    assert plan.memory_bytes <= config.memory_bytes
    assert plan.reason


@pytest.mark.parametrize("index_type", ["auto", "hnsw", "ivf"])
def test_what_does_not_fit_is_refused_with_what_it_takes(index_type: str) -> None:
    config = AnnConfig(index_type=index_type, memory_limit="1MB")
    with pytest.raises(InputError, match=r"at least [\d,]+ bytes as .*1,000,000 are allowed.*--memory-limit") as seen:
        choose_ann(count=1_000_000, width=512, config=config)
    assert ("--index-type auto" in str(seen.value)) == (index_type != "auto")
    least = int(str(seen.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    enough = AnnConfig(index_type=index_type, memory_limit=str(least))
    assert choose_ann(count=1_000_000, width=512, config=enough).memory_bytes == least


def test_the_memory_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("index.vectors.ann_building._CGROUP_LIMITS", (str(limit), str(tmp_path / "missing")))
    whole = machine_memory()
    assert whole > 10**7
    limit.write_text("max\n")
    assert machine_memory() == whole
    limit.write_text("12345678\n")
    assert machine_memory() == 12_345_678
    limit.write_text(str(2**63 - 4096))  # what an older kernel says where there is no limit
    assert machine_memory() == whole


@pytest.mark.parametrize(
    ("text", "size"),
    [("1.5GB", 1_500_000_000), ("500 MiB", 500 * 2**20), ("4Gi", 4 * 2**30), ("100B", 100), ("  7 K  ", 7000)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert AnnConfig(memory_limit=text).memory_bytes == size


@pytest.mark.parametrize("text", ["GB", "-1GB", "1,5GB", ".5GB", "1e9", "0.1B", "5 PB", " ", "nan", 400 * "9" + "GB"])
def test_what_is_no_size_is_refused_and_shown(text: str) -> None:
    with pytest.raises(InputError, match=r"--memory-limit must be a size like 500MB or 4GB, got"):
        AnnConfig(memory_limit=text)


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
    asking = np.sort(np.random.default_rng(1).choice(ROWS, size=200, replace=False))
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
