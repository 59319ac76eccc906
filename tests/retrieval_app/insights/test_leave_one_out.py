"""Leave-one-out in closed form against regressions that are fitted again without the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from retrieval_app.insights import leave_one_out as module
from retrieval_app.insights.leave_one_out import LeaveOneOut
from tests.index.vectors import VectorSource

_WIDTH = 24


def draw(count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Vectors, labels of which some are wrong, and how many there are."""
    vectors, labels = VectorSource(width=_WIDTH).draw(count, seed=3)
    random = np.random.default_rng(0)
    labels = np.where(random.random(count) < 0.2, random.permutation(labels), labels)
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return vectors, labels, int(labels.max()) + 1


def collect(judge: LeaveOneOut) -> np.ndarray:
    """(N, C) confidences of all rows in their own order."""
    shares = np.full((len(judge._labels), judge._count), np.nan, dtype=np.float32)
    for rows, block in judge.blocks():
        assert np.isnan(shares[rows]).all()  # each row is told once
        shares[rows] = block
    return shares


def fit_without(vectors: np.ndarray, labels: np.ndarray, left: Sequence[int], *, ridge: float) -> np.ndarray:
    """(g, C) float64 predictions for rows by a regression of the others."""
    kept = np.setdiff1d(np.arange(len(labels)), left)
    # X is centred once for all rows: without some of them the intercept is fitted beside the weights.
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    penalty = np.diag([ridge * np.square(centred).sum() / vectors.shape[1]] * vectors.shape[1] + [0])
    inputs, targets = np.c_[centred, np.ones(len(labels))], np.eye(labels.max() + 1)[labels]
    weights = np.linalg.solve(inputs[kept].T @ inputs[kept] + penalty, inputs[kept].T @ targets[kept])
    predictions: npt.NDArray[np.float64] = inputs[left] @ weights
    return predictions


def test_leaving_rows_out_is_fitting_without_them() -> None:
    vectors, labels, classes = draw(60)
    judge = LeaveOneOut(vectors, labels, count=classes, together=[np.array([5, 17, 40])])
    shares = collect(judge)
    for left in ([3], [5, 17, 40]):
        powers = np.exp(judge.temperature * fit_without(vectors, labels, left, ridge=judge.ridge))
        np.testing.assert_allclose(shares[left], powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("size", [_WIDTH - 1, _WIDTH + 1, _WIDTH + 2, 150, 297, 299])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_a_set_of_any_size_is_left_out_exactly_however_alike_its_rows_are(size: int, spread: float) -> None:
    vectors, labels, classes = draw(300)
    left = np.sort(np.random.default_rng(1).permutation(300)[:size])
    alike = vectors[left[0]] + spread * (vectors[left] - vectors[left[0]])
    vectors[left] = alike / np.linalg.norm(alike, axis=1, keepdims=True)
    judge = LeaveOneOut(vectors, labels, count=classes, together=[left])
    rows = np.array([row for block, _ in judge._predict_all(np.arange(300)[left]) for row in block])
    found = np.concatenate([block for _, block in judge._predict_all(rows)])
    expected = fit_without(vectors, labels, left.tolist(), ridge=judge.ridge)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    features = judge._features(left)  # and the dense form, which larger sets do without
    targets = np.eye(classes)[labels[left]]
    dense = targets - np.linalg.solve(np.eye(size) - features @ features.T, targets - features @ judge._weights)
    np.testing.assert_allclose(found, dense, rtol=1e-8, atol=1e-8)


def test_several_sets_over_several_blocks_are_each_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels, classes = draw(600)
    order = np.random.default_rng(2).permutation(600)
    together = [np.sort(part) for part in np.split(order[:500], [200, 400, 403])]  # two are larger than D, ...
    whole = collect(LeaveOneOut(vectors, labels, count=classes, together=together))
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 70)
    judge = LeaveOneOut(vectors, labels, count=classes, together=together)
    solved: list[int] = []
    for name in ("_weights_without", "_predict_without"):
        solve = getattr(judge, name)
        monkeypatch.setattr(judge, name, lambda rows, solve=solve: (solved.append(len(rows)), solve(rows))[1])
    np.testing.assert_allclose(collect(judge), whole, atol=1e-6)
    assert solved == [200, 200, 3, 97]


def test_no_matrix_is_as_large_as_a_large_set_squared(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels, classes = draw(3000)
    sizes: list[int] = []
    solve = np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda a, b: (sizes.append(len(a)), solve(a, b))[1])
    collect(LeaveOneOut(vectors, labels, count=classes, together=[np.arange(2500)]))
    assert set(sizes) == {_WIDTH + 1}


def test_rows_that_are_all_left_out_together_have_learnt_nothing() -> None:
    vectors, labels, classes = draw(40)
    shares = collect(LeaveOneOut(vectors, labels, count=classes, together=[np.arange(40)]))
    np.testing.assert_allclose(shares, 1 / classes)


def test_progress_is_told_between_blocks_and_while_a_large_set_is_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 100)
    vectors, labels, classes = draw(1000)
    told: list[tuple[int, int]] = []

    def watch(done: int, total: int) -> None:
        told.append((done, total))

    judge = LeaveOneOut(vectors, labels, count=classes, together=[np.arange(900)], progress=watch)
    before = len(told)
    collect(judge)
    assert len(told) - before > 10 + 9  # blocks, and those of the set
    assert told == sorted(told)
    assert told[-1] == (8000, 8000)
