import doctest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import index.arrays
import index.evaluation.groups
import index.evaluation.metrics
import index.sources.table_rows
import index.text
import index.vectors.exact
from index.arrays import UNLABELLED
from index.errors import InputError
from index.evaluation.metrics import Labelled, RetrievalScores, score_retrieval
from index.vectors.exact import bound_error
from tests.conftest import tries
from tests.oracles.retrieval_scores import rank_gallery, score_rankings

Problem = tuple[np.ndarray, np.ndarray, np.ndarray]
Groups = tuple[np.ndarray, np.ndarray] | None  # of queries and gallery
KS = [1, 3, 10, 100]
PLAIN: dict[str, float] = {}
SMALL: dict[str, float] = {"_PRODUCTS_AT_ONCE": 5, "_PAIRS_AT_ONCE": 2}  # so that a few rows go through several blocks
FINE: dict[str, float] = {**SMALL, "_MOST_ROUNDS": 3, "_HEAPS": 1}


@contextmanager
def sizes(chosen: dict[str, float]) -> Iterator[None]:
    modules = (index.vectors.exact, index.evaluation.metrics)
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
    asked = Labelled(queries.copy(), query_labels, query_ids, query_groups)
    return score_retrieval(asked, Labelled(vectors, labels, ids, gallery_groups), ks=KS)


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
@settings(max_examples=tries(25, deep=100), deadline=None)
@given(problem=problems(), chosen=st.sampled_from([PLAIN, SMALL, FINE]))
def test_scores_are_those_of_whole_rankings(problem: tuple[Problem, Problem | None], chosen: dict[str, float]) -> None:
    check(*problem, chosen)


@pytest.mark.deep
@settings(max_examples=tries(20, deep=100), deadline=None)
@given(
    problem=problems(),
    seed=st.integers(0, 10**6),
    chosen=st.sampled_from([PLAIN, SMALL, FINE]),
    count=st.sampled_from([1, 3, 12]),
)
def test_a_query_finds_none_of_its_group(
    problem: tuple[Problem, Problem | None], seed: int, chosen: dict[str, float], count: int
) -> None:
    """Groups run across labels, and hold queries that are no members of the gallery."""
    random = np.random.default_rng(seed)
    gallery, outside = (None if part is None else random.integers(count, size=len(part[1])) for part in problem)
    assert gallery is not None
    check(*problem, chosen, groups=(gallery if outside is None else outside, gallery))


@pytest.mark.deep
@settings(max_examples=tries(3, deep=6), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    classes=st.sampled_from([2, 7, 60]),
    noise=st.sampled_from([0.0, 1e-7, 1e-4, 0.3]),
    outside=st.booleans(),
    chosen=st.sampled_from([PLAIN, SMALL, FINE]),
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


def test_a_large_class_among_small_ones_gives_the_scores_of_whole_rankings() -> None:
    random = np.random.default_rng(4)
    labels = np.concatenate([np.full(300, 0), random.integers(1, 60, size=500)])
    vectors = random.normal(size=(800, 32)) * np.exp2(-np.arange(32) / 4)
    vectors += random.normal(size=(60, 32))[labels] * np.exp2(-np.arange(32) / 4)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    check((vectors.astype(np.float32), labels, random.permutation(800)), None, {"_PRODUCTS_AT_ONCE": 6400})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused(value: float) -> None:
    rows, labels = np.ones((3, 2), np.float32), np.zeros(3, np.int64)
    broken = rows.copy()
    broken[1, 0] = value
    for queries, gallery in ((broken, rows), (rows, broken)):
        with pytest.raises(InputError, match="1 of 3 vectors, the first in row 1, hold NaN or infinite numbers"):
            score_retrieval(Labelled(queries, labels), Labelled(gallery, labels))


@pytest.mark.deep
@settings(max_examples=tries(15, deep=100), deadline=None)
@given(seed=st.integers(0, 10**6), power=st.sampled_from([-60, -20, 0, 20]), dim=st.sampled_from([1, 3, 40, 300]))
def test_float32_products_are_within_the_bound_on_their_error(seed: int, power: int, dim: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(30, dim)) * np.exp2(power) * np.exp2(random.integers(-9, 9, (30, 1)))
    rows = rows.astype(np.float32)
    rows[3] = 0
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    errors = bound_error(norms, largest=float(norms.max()), dim=dim)[:, None]
    assert (np.abs(rows @ rows.T - exact) <= errors).all()


def score_among(
    vectors: np.ndarray, labels: np.ndarray, *, groups: np.ndarray | None = None, ks: Sequence[int]
) -> RetrievalScores:
    """Every image searches all others."""
    ids = 1 + np.arange(len(labels))  # none is its position
    images = Labelled(vectors, labels, ids, groups)
    return score_retrieval(images, images, ks=ks)


def test_recall_excludes_the_query_by_id_when_duplicates_tie() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    scores = score_among(vectors, np.array([0, 1, 0]), ks=[1, 2])
    assert scores.hits[1].tolist() == [0.0, 1.0]  # the first's nearest other is its double with another label
    assert scores.hits[2].tolist() == [1.0, 1.0]
    assert scores.lone_queries == 1
    assert scores.labels.tolist() == [0, 0]  # not that of the lone query


def test_a_query_whose_label_is_only_in_its_group_is_counted_and_left_out() -> None:
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], dtype=np.float32)
    groups = np.array([5, 5, 6, 7])
    scores = score_among(vectors, np.array([0, 0, 0, 1]), groups=groups, ks=[1, 2])
    assert scores.hits[1].tolist() == [0.0, 0.0, 0.0], "the nearest that may be found has another label"
    assert scores.hits[2].tolist() == [1.0, 1.0, 1.0]
    assert scores.lone_queries == 1, "the one image of label 1"
    assert scores.average_precision.tolist() == [0.0, 0.0, 0.25], "with one relevant item for those of the group"
    with pytest.raises(InputError, match="outside its group: all 4 labelled queries stand alone"):
        score_among(vectors, np.array([0, 0, 1, 2]), groups=groups, ks=[1])


def test_the_mean_over_classes_counts_a_small_class_like_a_large_one() -> None:
    vectors = np.array([[1, 0]] * 8 + [[0, 1], [1, 0]], dtype=np.float32)
    scores = score_among(vectors, np.array([4] * 8 + [7] * 2), ks=[1])
    assert scores.per_class_recall(1) == {4: 1.0, 7: 0.0}
    assert scores.mean_class_recall(1) == 0.5
    assert scores.recall[1] == 0.8


def test_a_k_below_one_is_refused() -> None:
    images = Labelled(np.ones((2, 2), np.float32), np.array([0, 0]))
    for ks in ([], [0, 1]):
        with pytest.raises(InputError, match="k must be whole numbers"):
            score_retrieval(images, images, ks=ks)


MODULES = (index.evaluation.metrics, index.evaluation.groups, index.arrays, index.text, index.sources.table_rows)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_are_right(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"np": np})
    assert result.attempted > 0
    assert result.failed == 0
