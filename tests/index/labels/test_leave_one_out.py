"""Leave-one-out in closed form against regressions that are fitted again without the rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import Doubles, normalise_rows
from index.labels import leave_one_out as module
from index.labels.leave_one_out import RIDGES, TEMPERATURES, LeaveOneOut, find_least
from tests.conftest import tries
from tests.index.vector_sources import VectorSource

_WIDTH = 24


def draw(count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Vectors, labels of which some are wrong, and how many there are."""
    vectors, labels = VectorSource(width=_WIDTH).draw(count, seed=3)
    random = np.random.default_rng(0)
    labels = np.where(random.random(count) < 0.2, random.permutation(labels), labels)
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return vectors, labels, int(labels.max()) + 1


def blobs(*, seed: int, per_class: int, classes: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.arange(classes).repeat(per_class)
    centres = random.normal(size=(classes, width))
    return (centres[labels] + 0.5 * random.normal(size=(len(labels), width))).astype(np.float32), labels


def group(count: int, *sets: Sequence[int]) -> np.ndarray:
    """Numbers of groups: these rows together, all others alone."""
    groups = 7 * np.arange(count)  # with gaps
    for rows in sets:
        groups[rows] = groups[rows[0]]
    return groups


def collect(judge: LeaveOneOut) -> np.ndarray:
    """(N, C) confidences of all rows in their own order."""
    shares = np.full((len(judge._labels), judge.count), np.nan, dtype=np.float32)
    for rows, block in judge.blocks():
        assert np.isnan(shares[rows]).all()  # each row is told once
        shares[rows] = block
    return shares


def fit_without(
    vectors: np.ndarray, labels: np.ndarray, left: Any, *, count: int, ridge: float, weights: np.ndarray | None = None
) -> Doubles:
    """(g, C) float64 predictions for rows by a weighted regression of the others, by default with balanced labels."""
    kept = np.setdiff1d(np.arange(len(labels)), left)
    parts = 1 / np.bincount(labels)[labels] if weights is None else weights
    parts = parts / parts.mean()
    # X is centred once for all rows: without some of them the intercept is fitted beside the weights.
    centred = vectors.astype(np.float64) - parts @ vectors / len(labels)
    mean_variance = (parts @ np.square(centred)).sum() / vectors.shape[1]
    penalty = np.diag([ridge * mean_variance] * vectors.shape[1] + [0])
    inputs, targets = np.c_[centred, np.ones(len(labels))], np.eye(count)[labels]
    weighted = inputs[kept] * parts[kept, None]
    solved = np.linalg.solve(weighted.T @ inputs[kept] + penalty, weighted.T @ targets[kept])
    predictions: Doubles = inputs[left] @ solved
    return predictions


@settings(deadline=None, max_examples=tries(20, deep=60))
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 3), min_size=3, max_size=15),
    width=st.integers(2, 30),
    classes=st.integers(2, 5),
    weighted=st.booleans(),
)
def test_every_group_is_left_out(seed: int, sizes: list[int], width: int, classes: int, weighted: bool) -> None:
    random = np.random.default_rng(seed)
    count = sum(sizes)
    features = (random.normal(size=(count, width)) + 1).astype(np.float32)
    labels = random.integers(0, classes, count)
    groups = 7 * random.permutation(np.arange(len(sizes)).repeat(sizes))
    weights = random.random(count) + 0.1 if weighted else None
    judge = LeaveOneOut(features, labels, count=classes, groups=groups, weights=weights)
    found = collect(judge)
    for number in np.unique(groups):
        left = np.flatnonzero(groups == number)
        rows = normalise_rows(features)
        fitted = fit_without(rows, labels, left, count=classes, ridge=judge.ridge, weights=weights)
        scores = judge.temperature * fitted
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        np.testing.assert_allclose(found[left], powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize(
    ("size", "spread"), [(_WIDTH - 1, 1.0), (_WIDTH + 1, 1e-3), (150, 1.0), (297, 1e-3), (299, 1.0)]
)
def test_a_set_of_any_size_is_left_out_exactly_however_alike_its_rows_are(size: int, spread: float) -> None:
    vectors, labels, classes = draw(300)
    left = np.sort(np.random.default_rng(1).permutation(300)[:size])
    vectors[left] = normalise_rows(vectors[left[0]] + spread * (vectors[left] - vectors[left[0]]))
    judge = LeaveOneOut(vectors, labels, count=classes, groups=group(300, left))
    found = judge._predict(left)
    expected = fit_without(judge._rows, labels, left, count=classes, ridge=judge.ridge)
    digits = 1e-8 if size <= 150 else 1e-6  # where nearly all is left out, what is left counts little beside it
    np.testing.assert_allclose(found, expected, rtol=digits, atol=digits)


def test_sets_over_several_blocks_are_judged_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels, classes = draw(600)
    order = np.random.default_rng(2).permutation(600)
    groups = group(600, *np.split(order[:500], [200, 400, 403]))  # two are larger than D
    whole = collect(LeaveOneOut(vectors, labels, count=classes, groups=groups))
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 70)
    judge, sizes, solve = LeaveOneOut(vectors, labels, count=classes, groups=groups), set[int](), np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda a, b: (sizes.add(len(a)), solve(a, b))[1])
    np.testing.assert_allclose(collect(judge), whole, atol=1e-6)
    assert max(sizes) == _WIDTH + 1  # no matrix is as large as a large set squared


def test_a_grid_goes_on_until_its_best_value_is_inside() -> None:
    features, labels = blobs(seed=3, per_class=3, classes=150, width=40)
    judge = LeaveOneOut(features, labels, count=150)
    assert judge.temperature > TEMPERATURES[-1]

    def loss(temperature: float) -> float:
        judge.temperature = temperature
        return -float(np.log(collect(judge)[np.arange(len(labels)), labels]).sum())

    best = judge.temperature
    assert loss(best) < min(loss(best * 1.25), loss(best / 1.25))
    told_nothing = LeaveOneOut(np.random.default_rng(0).permutation(features), labels, count=150)
    assert told_nothing.ridge > RIDGES[-1]


@pytest.mark.parametrize("rare", [3, 6])
def test_right_labels_of_few_rows_are_not_taken_for_mistakes_as_they_are_few(rare: int) -> None:
    features, labels = blobs(seed=4, per_class=90, classes=8, width=30)
    features += 2 * np.random.default_rng(9).normal(size=features.shape).astype(np.float32)
    kept = np.flatnonzero((labels >= 4) | (np.arange(len(labels)) % 90 < rare))
    features, labels = features[kept], labels[kept]

    def believe(weights: np.ndarray | None) -> tuple[float, float]:
        own = collect(LeaveOneOut(features, labels, count=8, weights=weights))[np.arange(len(labels)), labels]
        return float(own[labels < 4].mean()), float(own[labels >= 4].mean())

    few, many = believe(None)
    few_by_frequency, many_by_frequency = believe(np.ones(len(labels)))
    assert few > 5 * few_by_frequency
    assert few > many / 3
    assert few_by_frequency < many_by_frequency / 10


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_features_that_say_nothing_leave_the_shares_of_the_labels(value: float) -> None:
    labels = np.array([0] * 9 + [1] * 3)
    judge = LeaveOneOut(np.full((12, 4), value, dtype=np.float32), labels, count=2)
    output = np.array([[8 / 11, 3 / 11], [9 / 11, 2 / 11]])[labels]  # the row itself does not count
    powers = np.exp(judge.temperature * output)
    np.testing.assert_allclose(collect(judge), powers / powers.sum(axis=1, keepdims=True), atol=1e-6)
    for count in (1, 8):  # where nothing else is left, no label is likelier
        features = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
        alone = LeaveOneOut(features, np.arange(count) % 2, count=2, groups=np.zeros(count, dtype=np.int64))
        np.testing.assert_allclose(collect(alone), 0.5)


@pytest.mark.parametrize("count", [12, 60])  # fewer rows than directions, and more
def test_other_rows_are_predicted_by_the_regression_of_all(count: int) -> None:
    features, labels = blobs(seed=1, per_class=count // 3, classes=3, width=_WIDTH)
    asked, _ = blobs(seed=1, per_class=2, classes=3, width=_WIDTH)
    judge = LeaveOneOut(features, labels, count=3, ridges=(1.0,))
    rows, others = (normalise_rows(some).astype(np.float64) for some in (features, asked))
    middle = rows.mean(axis=0)
    variance = (rows - middle).T @ (rows - middle)
    width = min(count, _WIDTH)
    ridge = np.trace(variance) / width
    weights = np.linalg.solve(variance + ridge * np.eye(_WIDTH), (rows - middle).T @ np.eye(3)[labels])
    predicted = (others - middle) @ weights + 1 / 3
    powers = np.exp(judge.temperature * predicted)
    np.testing.assert_allclose(judge.predict(asked), powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("per_class", [8, _WIDTH, 40])  # fewer rows than dimensions, and more
@pytest.mark.parametrize("weighted", [True, False])
def test_an_unseen_class_is_predicted_by_a_regression_of_the_other_classes(per_class: int, weighted: bool) -> None:
    features, labels = blobs(seed=1, per_class=per_class, classes=4, width=_WIDTH)
    labels = np.random.default_rng(0).permutation(labels)  # so that its rows are no block
    weights = np.random.default_rng(2).random(len(labels)) + 0.1 if weighted else None
    judge = LeaveOneOut(features, labels, count=4, weights=weights)
    for label in range(4):
        rows, found = judge.confidences_unseen(label)
        assert rows.tolist() == np.flatnonzero(labels == label).tolist()
        fitted = fit_without(normalise_rows(features), labels, rows, count=4, ridge=judge.ridge, weights=weights)
        powers = np.exp(judge.temperature * (fitted - fitted.max(axis=1, keepdims=True)))
        powers[:, label] = 0
        np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


def test_the_least_of_a_loss_that_is_flat_far_from_it_is_found() -> None:
    asked: list[float] = []

    def loss(value: float) -> float:
        asked.append(value)
        return min((value - 3) ** 2, 4.0)

    assert find_least([float(n) for n in range(28)], loss) == (0.0, 3.0)
    assert len(asked) < 14
