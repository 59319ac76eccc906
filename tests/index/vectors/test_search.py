"""Every type of index against float64: recall under filters, deletions and additions, and what holds exactly."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import NO_ID
from index.vectors.ann_building import build_ann_index
from index.vectors.ann_config import AnnConfig
from index.vectors.search import VectorSearch
from index.vectors.shards import VectorRows
from index.vectors.stored_rows import StoredRows
from tests.conftest import mostly_slow, tries
from tests.index.vector_sources import VectorSource, exact_scores, measure_recall, search_by_id, split_rows, spread_ids

INDEXED, LATER, QUERIES = 5000, 240, 300
TARGET = 0.95
ALWAYS_INDEX = {"rows_per_effort": 0, "rows_per_candidate": 0}
SOURCES = {32: VectorSource(width=32, decay=0.3), 160: VectorSource(width=160, decay=1.0)}
# width, type, memory limit and the factory of what is built
KINDS = {
    "flat": (32, "flat", "", r"Flat"),
    "hnsw": (32, "hnsw", "", r"HNSW\d+,SQ8"),
    "ivf": (32, "ivf", "", r"IVF\d+,SQ8"),
    "reduced hnsw": (160, "hnsw", "", r"PCA32,HNSW\d+,SQ8"),
}
FAST = ("flat", "hnsw", "ivf")
slow = partial(pytest.param, marks=pytest.mark.slow)


@dataclass
class Built:
    """An index over the first rows, all rows, and queries that are none of them."""

    folder: Path
    described: dict[str, Any]
    shards: list[VectorRows]
    vectors: np.ndarray
    ids: np.ndarray
    clusters: np.ndarray
    queries: np.ndarray
    query_clusters: np.ndarray
    exact: np.ndarray

    def open(self, *, deleted: np.ndarray | None = None, later: bool = True, **described: object) -> VectorSearch:
        """Open it: with rows that came later, with deleted ids, or where other things are said of the index."""
        shards = self.shards if later else self.shards[:2]
        return VectorSearch.open(shards, folder=self.folder, described={**self.described, **described}, deleted=deleted)

    def mask(self, *, deleted: np.ndarray | None = None, later: bool = True) -> np.ndarray:
        """(N,) bool: the members."""
        mask = np.ones(len(self.ids) if later else INDEXED, dtype=bool)
        return mask if deleted is None else mask & ~np.isin(self.ids[: len(mask)], deleted)


@pytest.fixture(scope="module")
def build_kind(tmp_path_factory: pytest.TempPathFactory, one_core: None) -> Callable[[str], Built]:
    @cache
    def build(name: str) -> Built:
        width, kind, memory_limit, factory = KINDS[name]
        source = SOURCES[width]
        vectors, clusters = source.draw_gallery(INDEXED + LATER, seed=1)
        ids = spread_ids(len(vectors))
        shards = split_rows(vectors, ids, ends=[1777, INDEXED])
        folder = tmp_path_factory.mktemp(kind)
        config = AnnConfig(index_type=kind, recall_target=TARGET, memory_limit=memory_limit)
        described = build_ann_index(shards[:2], config=config, folder=folder)
        assert re.fullmatch(factory, described["factory"])
        queries, query_clusters = source.draw(QUERIES, seed=77)
        exact = exact_scores(queries, vectors)
        return Built(folder, described, shards, vectors, ids, clusters, queries, query_clusters, exact)

    return build


@pytest.fixture(params=mostly_slow(KINDS, fast=FAST))
def built(request: pytest.FixtureRequest, build_kind: Callable[[str], Built]) -> Built:
    return build_kind(request.param)


def check(
    built: Built,
    found: tuple[np.ndarray, np.ndarray],
    *,
    k: int,
    mask: np.ndarray,
    rows: np.ndarray | slice = slice(None),
) -> float:
    """Check all that must hold exactly, whatever the index finds; its recall."""
    scores, ids = found
    exact = built.exact[rows][:, : len(mask)].copy()
    assert scores.shape == ids.shape == (len(exact), k)
    assert scores.dtype == np.float32
    exact[:, ~mask] = -np.inf
    counts = np.minimum(k, np.isfinite(exact).sum(axis=1))
    there = ids != NO_ID
    assert np.array_equal(there, np.arange(k) < counts[:, None])
    places = np.searchsorted(built.ids, ids).clip(max=len(mask) - 1)
    assert np.array_equal(built.ids[places][there], ids[there])
    own = np.take_along_axis(exact, places, axis=1)
    assert np.isfinite(own[there]).all()
    assert np.array_equal(scores[there], own[there])
    assert np.isneginf(scores[~there]).all()
    falls, rises = scores[:, 1:] < scores[:, :-1], ids[:, 1:] > ids[:, :-1]
    assert (falls | (scores[:, 1:] == scores[:, :-1]) & rises)[there[:, 1:]].all()  # so none comes twice either
    return measure_recall(ids, exact, built.ids, k=k)


def random_mask(share: float, size: int, *, seed: int = 5) -> np.ndarray:
    mask = np.zeros(size, dtype=bool)
    mask[np.random.default_rng(seed).choice(size, size=max(1, round(share * size)), replace=False)] = True
    return mask


@pytest.mark.parametrize("later", [False, True])
def test_fresh_queries_meet_the_target(built: Built, later: bool) -> None:
    mask = built.mask(later=later)
    for k in (1, 100):
        recall = check(built, built.open(later=later).search(built.queries, k=k), k=k, mask=mask)
        assert recall >= (TARGET if built.described["type"] != "flat" else 1)


# The second makes the index answer where a scan would be sooner, as among millions.
@pytest.mark.parametrize("described", [{}, {"costs": ALWAYS_INDEX}], ids=["as built", "never a scan first"])
@pytest.mark.parametrize("share", [0.9, 0.05, 0.0005])
def test_random_filters_meet_the_target(built: Built, share: float, described: dict[str, Any]) -> None:
    mask = random_mask(share, len(built.ids))
    search = built.open(**described)
    rows = slice(40 if described and share < 0.1 else None)  # the graph is looked through as a whole
    for k in (1, 100):
        found = search.search(built.queries[rows], k=k, among=search.subset(built.ids[mask]))
        assert check(built, found, k=k, mask=mask, rows=rows) >= TARGET
    chosen = search.subset(np.random.default_rng(0).permutation(built.ids[mask]))
    assert np.array_equal(chosen.mask, mask)
    again = search.search(built.queries[rows], k=100, among=chosen)
    assert np.array_equal(again[1], found[1])


@pytest.mark.deep
@pytest.mark.parametrize("described", [{}, {"costs": ALWAYS_INDEX}], ids=["as built", "never a scan first"])
@pytest.mark.parametrize("keeps", ["its own cluster", "the farthest cluster", "the larger half of the clusters"])
def test_filters_like_the_query_meet_the_target(built: Built, keeps: str, described: dict[str, Any]) -> None:
    search, recalls, unfiltered = built.open(**described), [], []
    for cluster in range(tries(3, deep=6)):
        rows = np.flatnonzero(built.query_clusters == cluster)
        members = [built.clusters == other for other in range(40)]
        means = [built.exact[rows][:, of].mean() if of.any() else 1 for of in members]
        mask = {
            "its own cluster": members[cluster],
            "the farthest cluster": members[int(np.argmin(means))],
            "the larger half of the clusters": np.isin(built.clusters, np.argsort(means)[20:]),
        }[keeps]
        found = search.search(built.queries[rows], k=10, among=search.subset(built.ids[mask]))
        recalls += len(rows) * [check(built, found, k=10, mask=mask, rows=rows)]
        found = search.search(built.queries[rows], k=10)
        unfiltered += len(rows) * [check(built, found, k=10, mask=built.mask(), rows=rows)]
    assert np.mean(recalls) >= min(TARGET, np.mean(unfiltered))  # some queries are harder


@pytest.mark.parametrize("described", [{}, {"costs": ALWAYS_INDEX}], ids=["as built", "never a scan first"])
@pytest.mark.parametrize("hidden", [60, slow(500)])
def test_filters_that_hide_neighbours_meet_the_target(built: Built, hidden: int, described: dict[str, Any]) -> None:
    search, recalls = built.open(**described), []
    for row in range(40):
        mask = np.ones(len(built.ids), dtype=bool)
        mask[np.argsort(-built.exact[row])[:hidden]] = False
        found = search.search(built.queries[row : row + 1], k=10, among=search.subset(built.ids[mask]))
        recalls.append(check(built, found, k=10, mask=mask, rows=slice(row, row + 1)))
    assert np.mean(recalls) >= TARGET


@pytest.mark.parametrize("share", [0.01, 0.9])
def test_deleted_rows_never_come_back_and_the_target_is_met(built: Built, share: float) -> None:
    deleted = built.ids[random_mask(share, len(built.ids), seed=9)]
    search, mask = built.open(deleted=deleted), built.mask(deleted=deleted)
    for k in (10, 100):
        assert check(built, search.search(built.queries, k=k), k=k, mask=mask) >= TARGET
    kept = random_mask(0.3, len(built.ids))
    found = search.search(built.queries, k=10, among=search.subset(built.ids[kept]))
    assert check(built, found, k=10, mask=mask & kept) >= TARGET


@pytest.mark.parametrize("copies", [1, 40])
def test_a_lone_query_finds_the_same_before_faiss_is_loaded(
    copies: int, build_kind: Callable[[str], Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_kind("flat")
    repeated = np.repeat(built.vectors[:100], copies, axis=0)  # which tie
    stored = StoredRows.of(split_rows(repeated, spread_ids(len(repeated)), ends=[70]))
    search = VectorSearch(stored)
    for k in (1, 10, len(repeated) + 5):
        usual = [search.search(query[None], k=k) for query in built.queries[:20]]
        with monkeypatch.context() as patched:
            patched.setattr("index.vectors.stored_rows.is_faiss_loaded", lambda: False)
            for query, (scores, ids) in zip(built.queries, usual, strict=False):
                found = search.search(query[None], k=k)
                assert np.array_equal(found[0], scores)
                assert np.array_equal(found[1], ids)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, list[VectorRows], np.ndarray, np.ndarray]:
    """Queries, shards, members and allowed rows: few different vectors of halves, so that every sum is exact."""
    width, count = draw(st.integers(1, 4)), draw(st.integers(1, 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    vectors = random.integers(-2, 3, size=(count, width)).astype(np.float32) / 4
    asked = draw(st.sampled_from([1, 5, 19, 20, 45]))
    queries = random.integers(-2, 3, size=(asked, width)).astype(np.float32) / 4
    ends = sorted(draw(st.lists(st.integers(0, count), max_size=3)))  # some shards may be empty
    shards = split_rows(vectors, spread_ids(count, seed=draw(st.integers(0, 9))), ends=ends)
    members = random.random(count) < draw(st.sampled_from([1.0, 0.5]))
    allowed = random.random(count) < draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    return queries, shards, members, allowed


@pytest.mark.deep
@settings(max_examples=tries(37, deep=150), deadline=None)
@given(problems(), st.integers(1, 70), st.integers(1, 3), st.booleans(), st.sampled_from([1, 50, 1 << 22]))
def test_a_flat_search_is_the_exact_one(problem: Any, k: int, threads: int, is_filtered: bool, at_once: int) -> None:
    queries, shards, members, allowed = problem
    stored = StoredRows.of(shards)
    vectors = np.concatenate([shard.vectors for shard in shards])
    search = VectorSearch(stored, deleted=stored.ids[~members])
    kept = members & allowed if is_filtered else members
    expected = search_by_id(queries, vectors[kept], k=k, ids=stored.ids[kept])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.vectors.search._RANKED_AT_ONCE", at_once)
        patched.setattr("index.vectors.stored_rows._ROWS_AT_ONCE", max(4, at_once))
        kept_ids = search.subset(stored.ids[allowed]) if is_filtered else None
        found = search.search(queries, k=k, among=kept_ids, threads=threads)
    assert np.array_equal(found[1], expected[1])
    assert np.array_equal(found[0], expected[0])


ROWS, WIDTH = 2311, 24


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return VectorSource(width=WIDTH).draw_gallery(ROWS, seed=4)[0]


def store(vectors: np.ndarray, *, ends: list[int]) -> StoredRows:
    return StoredRows.of(split_rows(vectors, spread_ids(len(vectors)), ends=ends))


@pytest.mark.parametrize("ends", [[], [777, 778, 2300]])
def test_rows_are_gathered_by_positions_of_any_shape(vectors: np.ndarray, ends: list[int]) -> None:
    stored, random = store(vectors, ends=ends), np.random.default_rng(8)
    for shape in ((), (1,), (50,), (0,), (4, 30), (0, 5), (3, 0), (2, 3, 4)):
        positions = np.asarray(random.integers(0, ROWS, size=shape))
        rows = stored.gather(positions)
        assert rows.dtype == np.float32
        assert np.array_equal(rows, vectors[positions])
    boundaries = np.array([0, *ends, *(end - 1 for end in ends), ROWS - 1])
    assert np.array_equal(stored.gather(boundaries), vectors[boundaries])
