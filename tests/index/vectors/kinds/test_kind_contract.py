"""What every kind in the registry must do; a further one is tested here by being in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import pytest

from index.faiss_library import faiss_threads, find_inner
from index.vectors.ann_building import build_ann_index, retune_ann_index
from index.vectors.ann_config import AnnConfig
from index.vectors.kinds.kind import IndexKind, Wanted
from index.vectors.kinds.registry import KINDS
from index.vectors.search import VectorSearch
from index.vectors.shards import VectorRows
from tests.index.vector_sources import VectorSource, exact_scores, measure_recall, split_rows, spread_ids

ROWS, WIDTH, TARGET = 2000, 32, 0.9
SIZES = [(1000, 1), (1000, 32), (150_000, 127), (5_000_000, 512)]


@pytest.fixture(scope="module")
def shards() -> list[VectorRows]:
    vectors, _ = VectorSource(width=WIDTH).draw_gallery(ROWS, seed=3)
    return split_rows(vectors, spread_ids(ROWS), ends=[700])


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> IndexKind:
    return request.param


@pytest.fixture(scope="module")
def config(kind: IndexKind) -> AnnConfig:
    return AnnConfig(index_type=kind.name, recall_target=TARGET)


@pytest.fixture(scope="module")
def built(config: AnnConfig, shards: list[VectorRows], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("ann")
    with pytest.MonkeyPatch.context() as patched, faiss_threads(1):
        patched.setattr("index.vectors.tuning.usable_cores", lambda: 1)
        described = build_ann_index(shards, config=config, folder=folder)
        yield VectorSearch.open(shards, folder=folder, described=described), described


@pytest.mark.parametrize(("count", "width"), SIZES)
def test_plans_are_of_the_kind_and_the_later_ones_smaller(kind: IndexKind, count: int, width: int) -> None:
    plans = kind.plan(Wanted(count, width, None))
    assert plans
    assert {plan.type for plan in plans} == {kind.name}
    sizes = [plan.memory_bytes for plan in plans]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 0
    reduced = kind.plan(Wanted(count, width, max(1, width // 2)))
    assert {plan.reduced_width for plan in reduced} == {max(1, width // 2) if kind.is_reducible else None}


@pytest.mark.parametrize(("count", "width"), SIZES)
def test_faiss_makes_what_is_planned(kind: IndexKind, count: int, width: int) -> None:
    for plan in [] if kind.is_exact else kind.plan(Wanted(count, width)):
        index = faiss.index_factory(width, plan.factory, faiss.METRIC_INNER_PRODUCT)
        assert kind.is_of(find_inner(index))
        others = [other.name for other in KINDS.values() if other is not kind and other.is_of(find_inner(index))]
        assert not others


def test_searches_find_what_was_promised(built: Any, kind: IndexKind, shards: list[VectorRows]) -> None:
    search, _ = built
    queries, _ = VectorSource(width=WIDTH).draw(100, seed=9)
    vectors, ids = np.concatenate([rows.vectors for rows in shards]), search.stored.ids
    truth = exact_scores(queries, vectors)
    recall = measure_recall(search.search(queries, k=10)[1], truth, ids, k=10)
    assert recall >= (1 if kind.is_exact else TARGET)
    kept = np.random.default_rng(1).random(ROWS) < 0.05
    truth[:, ~kept] = -np.inf
    found = search.search(queries, k=10, allowed=search.keep(ids[kept]))[1]
    assert measure_recall(found, truth, ids, k=10) >= (1 if kind.is_exact else TARGET)


def test_settings_that_are_measured_rise_and_are_named_as_the_kind_names_them(built: Any, kind: IndexKind) -> None:
    search, described = built
    if kind.is_exact:
        assert (search.index, kind.sweep(1, is_reduced=False)) == (None, ((), ()))
        assert described["parameters"] == {}
        return
    most = search.index.most_effort
    for is_reduced in {False, kind.is_reducible}:
        for values in kind.sweep(most, is_reduced=is_reduced):
            assert list(values) == sorted(set(values))
            assert values[0] >= 1
        assert kind.sweep(most, is_reduced=is_reduced).efforts[-1] <= most
    names = [set(point["parameters"]) for point in described["curve"]]
    assert all(point == {kind.effort, "candidates"} for point in names)


def test_the_most_effort_looks_at_all(built: Any, kind: IndexKind) -> None:
    search, _ = built
    if kind.is_exact:
        return
    found = search.index.search(search.stored.gather(np.arange(3)), k=ROWS, effort=search.index.most_effort)[1]
    assert (found >= 0).mean() > 0.9  # a graph reaches what links lead to


def test_it_is_measured_again_for_another_target(built: Any, config: AnnConfig) -> None:
    search, described = built
    again = retune_ann_index(search, described=described, config=config)
    assert set(again) == set(described)
    assert again["recall_at_10"] >= TARGET
