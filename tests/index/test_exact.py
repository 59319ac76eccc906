from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.exact import NO_ID, search, search_blocks
from index.faiss_library import import_faiss


def slow_search(
    queries: np.ndarray, gallery: np.ndarray, *, k: int, gallery_ids: np.ndarray, query_ids: np.ndarray | None
) -> list[list[tuple[float, int]]]:
    """Rank by (-score, id), one product at a time."""
    answers = []
    for row, query in enumerate(queries):
        ranking = []
        for vector, key in zip(gallery, gallery_ids, strict=True):
            if query_ids is None or key != query_ids[row]:
                score = np.float32(sum(float(a) * float(b) for a, b in zip(query, vector, strict=True)))
                ranking.append((-float(score), int(key)))
        answers.append([(-score, key) for score, key in sorted(ranking)[:k]])
    return answers


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Few different small whole-number vectors, so that ties abound and every sum is exact."""
    dim = draw(st.integers(1, 4))
    count = draw(st.integers(0, 30))
    values = st.integers(-2, 2)
    gallery = draw(st.lists(st.lists(values, min_size=dim, max_size=dim), min_size=count, max_size=count))
    queries = draw(st.lists(st.lists(values, min_size=dim, max_size=dim), min_size=1, max_size=5))
    ids = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count, unique=True))
    as_rows = [np.array(rows, dtype=np.float32).reshape(-1, dim) for rows in (queries, gallery)]
    return as_rows[0], as_rows[1], np.array(ids, dtype=np.int64), draw(st.integers(1, 40))


@settings(max_examples=200, deadline=None)
@given(
    problem=problems(),
    as_members=st.booleans(),
    block_values=st.sampled_from([1, 20, 1 << 23]),
    block_numbers=st.sampled_from([1, 7, 1 << 24]),
)
def test_search_agrees_with_a_loop_over_every_pair(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray, int],
    as_members: bool,
    block_values: int,
    block_numbers: int,
) -> None:
    queries, gallery, ids, k = problem
    query_ids = None
    if as_members:
        queries, query_ids = gallery, ids
    expected = slow_search(queries, gallery, k=k, gallery_ids=ids, query_ids=query_ids)
    seen = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.exact._BLOCK_NUMBERS", block_numbers)
        for rows, scores, found in search_blocks(
            queries, gallery, k=k, gallery_ids=ids, query_ids=query_ids, block_values=block_values
        ):
            for row, row_scores, row_ids in zip(expected[rows], scores, found, strict=True):
                assert [(float(s), int(i)) for s, i in zip(row_scores, row_ids, strict=True) if i != NO_ID] == row
                assert np.isneginf(row_scores[len(row) :]).all()
                seen += 1
    assert seen == len(queries)


def test_blocks_of_the_gallery_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    vectors = random.normal(size=(700, 48)).astype(np.float32)
    vectors[300:340] = vectors[0]
    for ids in (np.arange(700), random.permutation(5000)[:700]):
        monkeypatch.setattr("index.exact._BLOCK_NUMBERS", 1 << 24)
        whole = search(vectors, vectors, k=60, gallery_ids=ids, query_ids=ids)
        monkeypatch.setattr("index.exact._BLOCK_NUMBERS", 48 * 129)
        blocks = search(vectors, vectors, k=60, gallery_ids=ids, query_ids=ids)
        assert np.array_equal(whole[0], blocks[0])
        assert np.array_equal(whole[1], blocks[1])


def test_a_duplicate_of_the_query_stays_when_the_query_is_removed() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    ids = np.array([7, 3, 5])
    _, found = search(vectors, vectors, k=2, gallery_ids=ids, query_ids=ids)
    assert found.tolist() == [[3, 5], [7, 5], [3, 7]]


def test_equal_vectors_tie_exactly_and_go_by_id_in_a_large_gallery() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(500, 33)).astype(np.float32)
    vectors[random.permutation(500)[:40]] = vectors[0]
    ids = random.permutation(10_000)[:500]
    twins = np.sort(ids[(vectors == vectors[0]).all(axis=1)])
    scores, found = search(vectors[:1], vectors, k=30, gallery_ids=ids)
    assert len(set(scores[0].tolist())) == 1
    assert found[0].tolist() == twins[:30].tolist()


def test_k_below_one_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="k must be at least 1"):
        search(np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), k=0, gallery_ids=np.array([1]))


def test_faiss_finds_the_same_neighbours() -> None:
    random = np.random.default_rng(1)
    vectors = random.normal(size=(300, 24)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.sort(random.permutation(5000)[:300]).astype(np.int64)
    faiss = import_faiss()
    index = faiss.IndexIDMap(faiss.IndexFlatIP(24))
    index.add_with_ids(vectors, ids)
    expected_scores, expected_ids = search(vectors[:20], vectors, k=15, gallery_ids=ids)
    scores, found = index.search(vectors[:20], 15)
    assert found.tolist() == expected_ids.tolist()
    assert np.allclose(scores, expected_scores, atol=1e-6)
