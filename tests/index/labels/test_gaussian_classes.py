"""Gaussian classes: against densities written down in a loop, what a row has no say in, and what is missing."""

import numpy as np
import pytest

from index.labels.gaussian_classes import GaussianClasses
from tests.index.labels.test_label_errors import blobs, collect


def _judge(
    features: np.ndarray, labels: np.ndarray, *, count: int, groups: np.ndarray | None = None
) -> GaussianClasses:
    return GaussianClasses(features, labels, count=count, prior=0.5, groups=groups, tell=lambda _: None)


def _folds_of(classes: GaussianClasses) -> list[np.ndarray]:
    return [classes._fold_of == fold for fold in range(classes._folds)]


def test_confidences_are_the_densities_of_the_rows_under_what_the_other_folds_say_of_each_label() -> None:
    features, labels = blobs(sizes=(40, 25, 30), width=6)
    judged = _judge(features, labels, count=3)
    weights = np.random.default_rng(0).uniform(0.2, 1, len(labels))
    judged.weigh(weights)
    found = collect(judged, len(labels), 3)
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    for fold in _folds_of(judged):
        rows, given, part = units[~fold].astype(np.float64), labels[~fold], weights[~fold]
        counts = np.array([part[given == c].sum() for c in range(3)])
        means = np.array([part[given == c] @ rows[given == c] / counts[c] for c in range(3)])
        within = sum(w * np.outer(x - means[c], x - means[c]) for x, c, w in zip(rows, given, part, strict=True))
        within /= counts.sum() - 3
        noise = within.copy()
        within += judged.shrinkage * np.trace(within) / 6 * np.eye(6)
        middle = means.mean(axis=0)
        between = (means - middle).T @ (means - middle) / 3 - noise * np.mean(1 / counts)
        # In the basis in which `within` is 1 and the scatter of the means is diagonal, negative variances are cut off.
        root = np.linalg.inv(np.linalg.cholesky(within))
        axes = root.T @ np.linalg.eigh(root @ (means - middle).T @ (means - middle) @ root.T)[1]
        psi = np.diag(axes.T @ between @ axes).clip(min=0)
        for row in np.flatnonzero(fold):
            along, logs = axes.T @ (units[row] - middle), np.zeros(3)
            for c in range(3):
                known = counts[c] * psi / (counts[c] * psi + 1)
                variance = 1 + psi / (counts[c] * psi + 1)
                distance = np.square(along - known * (axes.T @ (means[c] - middle))) / variance
                logs[c] = -0.5 * (distance + np.log(variance)).sum()
            chances = np.exp(judged.temperature * (logs - logs.max())) * np.bincount(labels) ** 0.5
            np.testing.assert_allclose(found[row], chances / chances.sum(), atol=2e-4)


def test_rows_of_a_group_never_speak_for_each_other() -> None:
    features, labels = blobs(sizes=(30, 30))
    groups = np.arange(60)
    groups[:30] = 0
    judged = _judge(features, labels, count=2, groups=groups)
    assert len({fold.tobytes() for fold in _folds_of(judged) if fold[:30].any()}) == 1
    found = collect(judged, 60, 2)
    assert (found[:30, 0] == 0).all()  # of the label without the group nothing is known
    assert (found[30:, 1] > 0).all()


@pytest.mark.parametrize(
    ("sizes", "groups"), [((1, 1), None), ((3, 3), np.zeros(6, dtype=np.int64)), ((2, 0, 2), None)]
)
def test_tiny_collections_have_finite_confidences(sizes: tuple[int, ...], groups: np.ndarray | None) -> None:
    features, labels = blobs(sizes=sizes)
    found = collect(_judge(features, labels, count=len(sizes), groups=groups), len(labels), len(sizes))
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_equal_images_and_more_directions_than_rows_are_survived() -> None:
    equal = np.ones((20, 5), dtype=np.float32)
    wide = np.random.default_rng(0).normal(size=(24, 700)).astype(np.float32)
    for features in (equal, wide):
        labels = np.arange(len(features)) % 2
        assert np.isfinite(collect(_judge(features, labels, count=2), len(features), 2)).all()
