"""What every kind in the registry must do; a further one is tested here by being in it."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from index.faiss_library import faiss_threads, find_inner
from index.vectors.ann_building import build_ann_index
from index.vectors.ann_config import AnnConfig
from index.vectors.kinds import KINDS, IndexKind
from index.vectors.search import VectorSearch
from tests.index.vector_sources import VectorSource, exact_scores, measure_recall, split_rows, spread_ids

ROWS, WIDTH, TARGET = 2000, 32, 0.9
SIZES = [(1000, 1), (1000, 32), (150_000, 127), (5_000_000, 512)]


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> IndexKind:
    return request.param


@pytest.mark.parametrize(("count", "width"), SIZES)
def test_faiss_makes_what_is_planned(kind: IndexKind, count: int, width: int) -> None:
    plan = kind.plan(count, width)
    assert plan.type == kind.name
    assert plan.memory_bytes > 0
    if not kind.is_exact:
        index = faiss.index_factory(width, plan.factory, faiss.METRIC_INNER_PRODUCT)
        assert kind.is_of(find_inner(index))
        others = [other.name for other in KINDS.values() if other is not kind and other.is_of(find_inner(index))]
        assert not others


def test_searches_find_what_was_promised(kind: IndexKind, tmp_path: Path) -> None:
    shards = split_rows(VectorSource(width=WIDTH).draw_gallery(ROWS, seed=3)[0], spread_ids(ROWS), ends=[700])
    config = AnnConfig(index_type=kind.name, recall_target=TARGET)
    with pytest.MonkeyPatch.context() as patched, faiss_threads(1):
        patched.setattr("index.vectors.ann_building.usable_cores", lambda: 1)
        described = build_ann_index(shards, config=config, folder=tmp_path)
        search = VectorSearch.open(shards, folder=tmp_path, described=described)
    assert all(set(point["parameters"]) == {kind.effort, "candidates"} for point in described["curve"])
    queries, _ = VectorSource(width=WIDTH).draw(100, seed=9)
    vectors, ids = np.concatenate([rows.vectors for rows in shards]), search.stored.ids
    truth = exact_scores(queries, vectors)
    recall = measure_recall(search.search(queries, k=10)[1], truth, ids, k=10)
    assert recall >= (1 if kind.is_exact else TARGET)
    kept = np.random.default_rng(1).random(ROWS) < 0.05
    truth[:, ~kept] = -np.inf
    found = search.search(queries, k=10, among=search.subset(ids[kept]))[1]
    assert measure_recall(found, truth, ids, k=10) >= (1 if kind.is_exact else TARGET)
