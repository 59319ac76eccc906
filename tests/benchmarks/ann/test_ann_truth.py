"""What counts as found in the benchmark of search."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ann.ann_truth import find_intersection, find_recall, find_truth
from index.arrays import Vectors


@pytest.fixture
def vectors() -> tuple[Vectors, Vectors]:
    """300 unit rows, the last 20 being copies of the first 20, and 5 that ask."""
    rows = np.random.default_rng(0).normal(size=(285, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.concatenate([rows[:280], rows[:20]]), rows[280:]


def test_the_truth_is_what_a_plain_scan_finds(vectors: tuple[Vectors, Vectors]) -> None:
    base, queries = vectors
    truth = find_truth(base, queries)
    cosines = queries.astype(np.float64) @ base.astype(np.float64).T
    assert (truth.ids == np.argsort(-cosines.astype(np.float32), axis=1, kind="stable")[:, :10]).all()
    assert np.allclose(truth.least, np.sort(cosines, axis=1)[:, -10], rtol=0, atol=1e-12)


def test_a_copy_of_a_neighbour_is_right_but_no_row_counts_twice(vectors: tuple[Vectors, Vectors]) -> None:
    base, _ = vectors
    queries = base[:5]  # each has a copy, 280 rows further on
    truth = find_truth(base, queries)
    swapped = truth.ids.copy()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    assert find_recall(base, queries, swapped, truth=truth) == 1
    twice = truth.ids.copy()
    twice[:, 9] = twice[:, 0]
    assert find_recall(base, queries, twice, truth=truth) == pytest.approx(0.9)


def test_the_tenth_place_may_go_to_a_copy_that_the_truth_does_not_name() -> None:
    base = np.eye(12, dtype=np.float32)[[0, *[1] * 11]]  # eleven copies share the places behind the first
    queries = np.array([[0.8, 0.6] + [0.0] * 10], dtype=np.float32)
    truth = find_truth(base, queries)
    ids = np.array([[0, 11, 10, 9, 8, 7, 6, 5, 4, 3]])
    assert find_recall(base, queries, ids, truth=truth) == 1
    assert find_intersection(ids, truth=truth) == pytest.approx(0.8)


def test_missing_and_forbidden_rows_are_wrong(vectors: tuple[Vectors, Vectors]) -> None:
    base, queries = vectors
    allowed = np.zeros(len(base), dtype=bool)
    allowed[30:34] = True
    truth = find_truth(base, queries, allowed=allowed)
    assert truth.ids.shape == (5, 4)
    ids = np.pad(truth.ids, ((0, 0), (0, 6)), constant_values=-1)
    assert find_recall(base, queries, ids, truth=truth, allowed=allowed) == 1
    ids[:, 0] = find_truth(base, queries, allowed=~allowed).ids[:, 0]  # as near, but not kept
    assert find_recall(base, queries, ids, truth=truth, allowed=allowed) == pytest.approx(0.75)
