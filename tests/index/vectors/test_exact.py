import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import NO_ID, normalise_rows
from index.vectors.exact import Nearest, search, search_labels
from tests.conftest import tries


def slow_search(
    queries: np.ndarray, gallery: np.ndarray, *, k: int, own: np.ndarray | None
) -> list[list[tuple[float, int]]]:
    """Rank by (-score, row), one product at a time."""
    answers = []
    for number, query in enumerate(queries):
        ranking = []
        for row, vector in enumerate(gallery):
            if own is None or row != own[number]:
                score = np.float32(sum(float(a) * float(b) for a, b in zip(query, vector, strict=True)))
                ranking.append((-float(score), row))
        answers.append([(-score, row) for score, row in sorted(ranking)[:k]])
    return answers


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Few different small whole-number vectors, so that ties abound and every sum is exact."""
    dim = draw(st.integers(1, 4))
    count = draw(st.integers(0, 30))
    values = st.integers(-2, 2)
    gallery = draw(st.lists(st.lists(values, min_size=dim, max_size=dim), min_size=count, max_size=count))
    queries = draw(st.lists(st.lists(values, min_size=dim, max_size=dim), min_size=1, max_size=5))
    as_rows = [np.array(rows, dtype=np.float32).reshape(-1, dim) for rows in (queries, gallery)]
    return as_rows[0], as_rows[1], draw(st.integers(1, 40))


def pairs(found: Nearest) -> list[list[tuple[float, int]]]:
    assert ((found.rows == NO_ID) == np.isneginf(found.cosines)).all()
    return [[(score, row) for row, score in found.of(place)] for place in range(len(found.rows))]


@pytest.mark.deep
@settings(max_examples=tries(50, deep=200), deadline=None)
@given(
    problem=problems(),
    as_members=st.booleans(),
    at_once=st.sampled_from([1, 20, 1 << 23]),
    candidates=st.sampled_from([1, 7, 1 << 20]),
)
def test_search_agrees_with_a_loop_over_every_pair(
    problem: tuple[np.ndarray, np.ndarray, int], as_members: bool, at_once: int, candidates: int
) -> None:
    queries, gallery, k = problem
    own = None
    if as_members:
        queries, own = gallery, np.arange(len(gallery))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.vectors.exact._PRODUCTS_AT_ONCE", at_once)
        patched.setattr("index.vectors.exact._CANDIDATES_AT_ONCE", candidates)
        found = search(queries, gallery, k=k, own=own)
    assert pairs(found) == slow_search(queries, gallery, k=k, own=own)


@pytest.mark.parametrize(("k", "width"), [(1, 3), (3, 48), (60, 700), (400, 48)])
def test_what_float32_would_confuse_is_told_apart(k: int, width: int) -> None:
    """Rows differ from each other by less than a product in float32 is wrong by, and some not at all."""
    random = np.random.default_rng(2)
    vectors = normalise_rows(random.normal(size=(5, width)).astype(np.float32))[random.integers(5, size=900)]
    vectors = normalise_rows(vectors + random.choice([0, 2e-7], size=vectors.shape).astype(np.float32))
    vectors[300:340] = vectors[0]
    asked = np.arange(0, 900, 17)
    exact = (vectors[asked].astype(np.float64) @ vectors.T.astype(np.float64)).astype(np.float32).clip(max=1)
    exact[np.arange(len(asked)), asked] = -np.inf
    found = search(vectors[asked], vectors, k=k, own=asked)
    order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    assert np.array_equal(found.cosines, np.take_along_axis(exact, order, axis=1))
    assert np.array_equal(found.rows, order)


def test_cosines_are_one_at_most_and_equal_there() -> None:
    vectors = normalise_rows(np.random.default_rng(4).normal(size=(300, 24)).astype(np.float32))
    assert (np.einsum("nd,nd->n", *[vectors.astype(np.float64)] * 2).astype(np.float32) > 1).any()
    twins = np.concatenate([vectors, vectors])
    found = search(vectors, twins, k=2)
    assert (found.cosines <= 1).all()
    assert found.rows.tolist() == [[row, row + 300] for row in range(300)]


@settings(max_examples=tries(30, deep=200), deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 12), count=st.integers(1, 9))
def test_a_query_does_not_find_the_group_of_its_own_row(seed: int, k: int, count: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(-2, 3, size=(12, 3)).astype(np.float32)
    groups, own = random.integers(count, size=12), random.integers(-1, 12, size=7)
    found = search(vectors[:7], vectors, k=k, own=own, groups=groups)
    for query, row in enumerate(own.tolist()):
        rest = np.flatnonzero((groups != groups[row]) | (row == NO_ID))
        expected = slow_search(vectors[query : query + 1], vectors[rest], k=k, own=None)[0]
        assert pairs(found)[query] == [(cosine, int(rest[place])) for cosine, place in expected]


def _plain(unit: np.ndarray, labels: np.ndarray, *, k: int, same: bool) -> list[list[int]]:
    """Rows in falling cosine, ties by row, one image at a time."""
    found = []
    for row in range(len(labels)):
        others = [r for r in range(len(labels)) if r != row and (labels[r] == labels[row]) == same]
        cosine = {r: np.float32(unit[r].astype(np.float64) @ unit[row].astype(np.float64)) for r in others}
        found.append(sorted(others, key=lambda r: (-cosine[r], r))[:k])
    return found


def _rows(nearest: Nearest) -> list[list[int]]:
    assert ((nearest.rows == NO_ID) == np.isneginf(nearest.cosines)).all()
    return [[row for row in rows if row != NO_ID] for rows in nearest.rows.tolist()]


@settings(deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40), k=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_nearest_of_either_kind_are_those_of_a_plain_search(labels: list[int], k: int, seed: int) -> None:
    numbers = np.array(labels, dtype=np.int64)
    corners = np.random.default_rng(seed).integers(0, 2, size=(len(labels), 4))  # many ties
    unit = normalise_rows(corners.astype(np.float32))
    agreeing, disagreeing = search_labels(unit, numbers, k=k)
    assert _rows(agreeing) == _plain(unit, numbers, k=k, same=True)
    assert _rows(disagreeing) == _plain(unit, numbers, k=k, same=False)


def test_those_who_ask_are_answered_in_their_order_and_duplicates_are_no_witnesses() -> None:
    unit = normalise_rows(np.array([[1, 0], [1, 0.01], [1, 0.02], [1, 0.03], [0, 1]], dtype=np.float32))
    labels, groups = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 0, 2])
    agreeing, disagreeing = search_labels(unit, labels, k=2, asked=np.array([3, 0]), groups=groups)
    assert agreeing.rows.tolist() == [[4, NO_ID], [2, NO_ID]]
    assert disagreeing.rows.tolist() == [[2, NO_ID], [4, NO_ID]]
    assert disagreeing.of(1) == [(4, 0.0)]


@pytest.mark.parametrize("size", [1e-30, 1e15, 1e19])
def test_rows_of_any_size_are_compared(size: float) -> None:
    vectors = (np.random.default_rng(3).normal(size=(200, 8)) * size).astype(np.float32)
    with np.errstate(over="ignore"):
        exact = (vectors.astype(np.float64) @ vectors.T.astype(np.float64)).astype(np.float32)
        found = search(vectors, vectors, k=7)
    assert np.array_equal(found.rows, np.argsort(-exact, axis=1, kind="stable")[:, :7])
