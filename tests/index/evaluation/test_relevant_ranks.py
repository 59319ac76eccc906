from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import index.evaluation.metrics
import index.evaluation.relevant_ranks
import index.evaluation.relevant_scores
import index.vectors.products
from index.arrays import UNLABELLED
from index.errors import InputError
from index.evaluation.metrics import RetrievalScores, score_retrieval
from index.vectors.products import Heads, arrange, bound_error, find_axes, find_scale, measure_norms
from tests.deep import tries
from tests.oracles.retrieval_scores import rank_gallery, score_rankings

Problem = tuple[np.ndarray, np.ndarray, np.ndarray]
Groups = tuple[np.ndarray, np.ndarray] | None  # of queries and gallery
KS = [1, 3, 10, 100]
PLAIN: dict[str, float] = {}
SMALL = {  # so that a few rows go through every block, stage and bound
    "_PANEL_ROWS": 2, "_TILE_COLUMNS": 3, "_STAGE_ROWS": 4, "_TURN_FROM": 0, "_COMPLETION_COST": 0, "_LEAST_SAMPLE": 3,
    "_LARGEST_SAMPLE": 3, "_MANY_RELEVANT": 1, "_BLOCK_ROWS": 2, "_BLOCK_SCORES": 5, "_PAIRS_AT_ONCE": 2,
    "_RELEVANT_AT_ONCE": 1 << 30,
}  # fmt: skip
WHOLE = {**SMALL, "_COMPLETION_COST": 1 << 30}  # no dimension is left for later
PARTS = {**SMALL, "_RELEVANT_AT_ONCE": 3}
RASH = {**SMALL, "_SURE": -2.0}  # too little is kept of many queries, which are asked again


@contextmanager
def sizes(chosen: dict[str, float]) -> Iterator[None]:
    modules = (
        index.vectors.products,
        index.evaluation.metrics,
        index.evaluation.relevant_ranks,
        index.evaluation.relevant_scores,
    )
    with pytest.MonkeyPatch.context() as patched:
        for name, value in chosen.items():
            holders = [module for module in modules if hasattr(module, name)]
            assert holders
            for module in holders:
                patched.setattr(module, name, value)
        yield


def score(gallery: Problem, outside: Problem | None, groups: Groups) -> RetrievalScores:
    vectors, labels, ids = gallery
    queries, query_labels, query_ids = gallery if outside is None else (outside[0], outside[1], None)
    query_groups, gallery_groups = groups or (None, None)
    return score_retrieval(
        queries.copy(), query_labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=query_ids,
        query_groups=query_groups, gallery_groups=gallery_groups, ks=KS,
    )  # fmt: skip


def check(gallery: Problem, outside: Problem | None, chosen: dict[str, float], *, groups: Groups = None) -> None:
    vectors, labels, ids = gallery
    queries, query_labels, query_ids = gallery if outside is None else (outside[0], outside[1], None)
    rankings = rank_gallery(queries, vectors, ids, query_ids, groups=groups)
    expected = score_rankings(rankings, query_labels, labels, ks=KS)
    with sizes(chosen):
        if not len(expected["map_at_r"]):
            with pytest.raises(InputError):
                score(gallery, outside, groups)
            return
        found = score(gallery, outside, groups)
    asked = query_labels[query_labels != UNLABELLED]
    assert (found.queries, found.queries + found.lone_queries) == (len(expected["map_at_r"]), len(asked))
    for k in KS:
        assert found.hits[k].tolist() == expected[str(k)].tolist()
        there = np.unique(found.labels).tolist()
        by_label = {label: found.hits[k][found.labels == label].mean() for label in there}
        assert found.per_class_recall(k) == pytest.approx(by_label)
        assert found.mean_class_recall(k) == pytest.approx(np.mean(list(by_label.values())))
        assert found.to_json()["recall"][str(k)] == pytest.approx(found.hits[k].mean())
    assert found.r_precision.tolist() == expected["r_precision"].tolist()
    assert found.average_precision == pytest.approx(expected["map_at_r"], abs=1e-14)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, Problem | None]:
    """Rows of few values, so that many products are equal; each row times a power of two, some rows twice."""
    dim, values = draw(st.integers(1, 9)), st.integers(-2, 2)
    powers = draw(st.sampled_from([[0], [0, -1, 3], [-60, 0, 50], [60], [-70]]))

    def some(count: int) -> Problem:
        rows = draw(st.lists(st.lists(values, min_size=dim, max_size=dim), min_size=count, max_size=count))
        scales = draw(st.lists(st.sampled_from(powers), min_size=count, max_size=count))
        labels = draw(st.lists(st.integers(UNLABELLED, 3), min_size=count, max_size=count))
        ids = draw(st.lists(st.integers(0, 500), min_size=count, max_size=count, unique=True))
        vectors = np.array(rows, np.float32).reshape(-1, dim) * np.exp2(np.array(scales, np.float32))[:, None]
        return vectors.astype(np.float32), np.array(labels, np.int64), np.array(ids, np.int64)

    return some(draw(st.integers(1, 30))), some(draw(st.integers(1, 8))) if draw(st.booleans()) else None


@pytest.mark.deep
@settings(max_examples=tries(25, deep=200), deadline=None)
@given(problem=problems(), chosen=st.sampled_from([PLAIN, SMALL, WHOLE, PARTS, RASH]))
def test_scores_are_those_of_whole_rankings(
    problem: tuple[Problem, Problem | None], chosen: dict[str, float]
) -> None:
    check(*problem, chosen)


@pytest.mark.deep
@settings(max_examples=tries(20, deep=200), deadline=None)
@given(
    problem=problems(), seed=st.integers(0, 10**6), chosen=st.sampled_from([PLAIN, SMALL, WHOLE, PARTS, RASH]),
    count=st.sampled_from([1, 3, 12]),
)  # fmt: skip
def test_a_query_finds_none_of_its_group(
    problem: tuple[Problem, Problem | None], seed: int, chosen: dict[str, float], count: int
) -> None:
    """Groups run across labels, and hold queries that are no members of the gallery."""
    random = np.random.default_rng(seed)
    gallery, outside = (None if part is None else random.integers(count, size=len(part[1])) for part in problem)
    assert gallery is not None
    check(*problem, chosen, groups=(gallery if outside is None else outside, gallery))


@pytest.mark.deep
@settings(max_examples=tries(3, deep=30), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    classes=st.sampled_from([2, 7, 60]),
    noise=st.sampled_from([0.0, 1e-7, 1e-4, 0.3]),
    outside=st.booleans(),
    chosen=st.sampled_from([PLAIN, SMALL, WHOLE, PARTS, RASH]),
)
def test_scores_that_differ_by_less_than_float32_can_tell_are_ranked_rightly(
    seed: int, classes: int, noise: float, outside: bool, chosen: dict[str, float]
) -> None:
    """Near doubles of a few rows, of unequal norms, under ids in no order."""
    random = np.random.default_rng(seed)
    count = 150
    centres = random.normal(size=(12, 24))
    vectors = centres[random.integers(12, size=count)] + noise * random.normal(size=(count, 24))
    vectors *= random.choice([1, 1, 1, 0.5, 7e4], size=(count, 1))
    labels = random.integers(UNLABELLED, classes, size=count)
    whole = vectors.astype(np.float32), labels, random.permutation(1000)[:count]
    gallery = tuple(part[:110] for part in whole) if outside else whole
    check(gallery, tuple(part[110:] for part in whole) if outside else None, chosen)


def test_several_stages_and_a_large_class_give_the_scores_of_whole_rankings() -> None:
    random = np.random.default_rng(4)
    labels = np.concatenate([np.full(300, 0), random.integers(1, 60, size=500)])
    vectors = random.normal(size=(800, 32)) * np.exp2(-np.arange(32) / 4)
    vectors += random.normal(size=(60, 32))[labels] * np.exp2(-np.arange(32) / 4)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    chosen = {
        "_PANEL_ROWS": 64,
        "_TILE_COLUMNS": 99,
        "_STAGE_ROWS": 128,
        "_LEAST_SAMPLE": 60,
        "_LARGEST_SAMPLE": 60,
    }
    check((vectors.astype(np.float32), labels, random.permutation(800)), None, chosen)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused(value: float) -> None:
    rows, labels = np.ones((3, 2), np.float32), np.zeros(3, np.int64)
    broken = rows.copy()
    broken[1, 0] = value
    for queries, gallery in ((broken, rows), (rows, broken)):
        with pytest.raises(InputError, match="1 of 3 vectors, the first in row 1, hold NaN or infinite numbers"):
            score_retrieval(queries, labels, gallery=gallery, gallery_labels=labels, gallery_ids=np.arange(3))


@pytest.mark.deep
@settings(max_examples=tries(15, deep=100), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    power=st.sampled_from([-120, -20, 0, 20, 58, 100]),
    dim=st.sampled_from([1, 3, 40, 300]),
)
def test_products_of_heads_bound_the_exact_products(seed: int, power: int, dim: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(30, dim)) * np.exp2(power) * np.exp2(random.integers(-9, 9, (30, 1)))
    rows = rows.astype(np.float32)
    rows[3] = 0
    norms = measure_norms(rows)
    scale = find_scale(norms)
    assert scale == 1 or 0.5 <= norms.max() * scale < 1
    exact = (rows.astype(np.float64) * scale) @ (rows.astype(np.float64) * scale).T
    errors = bound_error(norms * scale, largest=norms.max() * scale, dim=dim)[:, None]
    turned = arrange(rows, np.arange(30), scale=scale, axes=find_axes(rows))
    left, right = (place.ravel() for place in np.indices((30, 30)))
    for m in {1, dim // 3 + 1, dim}:
        heads = Heads.cut(turned, m)
        bounds = heads.values @ heads.values.T
        assert (exact <= bounds + errors).all()
        products = heads.complete(left, heads, right, bounds=bounds.ravel()).reshape(30, 30)
        assert (np.abs(products - exact) <= errors).all()
