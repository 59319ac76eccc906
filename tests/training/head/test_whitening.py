"""The whitened start against its equation, written as loops in float64, and on data that leaves it little to go by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import normalise_rows
from index.errors import InputError
from training.head.projection import Projection, fit_principal_axes
from training.head.whitening import DIRECTIONS, FLATTEN, RIDGE, fit_within_classes


def _blobs(
    *, seed: int = 0, count: int = 80, width: int = 10, classes: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features around a centre a class, with one direction of much variance within all classes; labels; weights."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=count)
    features = 2 * generator.normal(size=(classes, width))[labels] + generator.normal(size=(count, width))
    features[:, 0] += 5 * generator.normal(size=count)
    return features.astype(np.float32), labels, generator.random(count).astype(np.float32)


def _scatter_by_loops(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """S_w as the docstring has it."""
    scatter = np.zeros((rows.shape[1],) * 2)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        mean = sum(weights[i] * rows[i] for i in members) / sum(weights[i] for i in members)
        for i in members:
            scatter += weights[i] * np.outer(rows[i] - mean, rows[i] - mean)
    return scatter / weights.sum()


def _project(projection: Projection, features: np.ndarray) -> np.ndarray:
    return normalise_rows(features).astype(np.float64) @ projection.weight.T + projection.bias


def _as_by_the_equation(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, *, ridge: float, flatten: float, kept: int
) -> np.ndarray:
    """(N, kept) coordinates of the images, up to signs and one common length."""
    unit = normalise_rows(features).astype(np.float64)
    centred = unit - unit.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    rows = centred @ axes[:kept].T
    within = _scatter_by_loops(rows, labels, weights.astype(np.float64))
    values, vectors = np.linalg.eigh(within + ridge * np.mean(np.diag(within)) * np.eye(kept))
    whitened = rows @ vectors @ np.diag(values**-0.5) @ vectors.T
    left, deviations, _ = np.linalg.svd(whitened, full_matrices=False)
    return left * deviations / (deviations**2 / len(rows)) ** flatten


def _assert_same_up_to_signs(found: np.ndarray, expected: np.ndarray, *, atol: float) -> None:
    found, expected = (each / np.linalg.norm(each) for each in (found, expected))
    np.testing.assert_allclose(found * np.sign((found * expected).sum(axis=0)), expected, atol=atol)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1000),
    ridge=st.sampled_from([0.1, RIDGE, 3.0]),
    flatten=st.sampled_from([0.0, FLATTEN, 0.5]),
    kept=st.sampled_from([6, 10]),
)
def test_it_is_the_equation(seed: int, ridge: float, flatten: float, kept: int) -> None:
    features, labels, weights = _blobs(seed=seed)
    projection = fit_within_classes(
        features, labels, weights=weights, embedding_dim=4, directions=kept, ridge=ridge, flatten=flatten
    )
    assert (projection.weight.shape, projection.weight.dtype) == ((kept, 10), np.float32)
    expected = _as_by_the_equation(features, labels, weights, ridge=ridge, flatten=flatten, kept=kept)
    _assert_same_up_to_signs(_project(projection, features), expected, atol=1e-4)


def test_it_is_the_equation_in_several_blocks_and_by_default() -> None:
    features, labels, weights = _blobs(count=4096 + 100)
    projection = fit_within_classes(features, labels, weights=weights, embedding_dim=3)
    expected = _as_by_the_equation(features, labels, weights, ridge=RIDGE, flatten=FLATTEN, kept=10)
    _assert_same_up_to_signs(_project(projection, features), expected, atol=1e-5)


def test_without_belief_in_any_label_it_is_pca_with_its_variances_evened_out() -> None:
    features, labels, weights = _blobs(width=6)
    projection = fit_within_classes(features, labels, weights=0 * weights, embedding_dim=6)
    axes = fit_principal_axes(features, embedding_dim=6)
    plain = _project(axes.projection(power=0), features)
    _assert_same_up_to_signs(_project(projection, features), plain / axes.variances**FLATTEN, atol=1e-4)


@pytest.mark.parametrize(("embedding_dim", "flatten"), [(2, FLATTEN), (5, 0.5), (10, 0.0)])
def test_the_first_coordinates_have_a_mean_squared_length_of_one(embedding_dim: int, flatten: float) -> None:
    features, labels, weights = _blobs()
    projection = fit_within_classes(
        features, labels, weights=weights, embedding_dim=embedding_dim, flatten=flatten
    )
    coordinates = _project(projection, features)
    np.testing.assert_allclose(coordinates.mean(axis=0), 0, atol=1e-5)
    assert np.square(coordinates[:, :embedding_dim]).sum(axis=1).mean() == pytest.approx(1, rel=1e-3)


def test_a_direction_that_differs_within_classes_comes_last() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 2
    features = np.stack([5 + 0 * labels, 0.5 * (labels - 0.5), generator.normal(size=200)], axis=1)
    features[:, 1] += 0.05 * generator.normal(size=200)
    features = features.astype(np.float32)
    plain = fit_principal_axes(features, embedding_dim=1).projection(power=0)
    aware = fit_within_classes(
        features, labels, weights=np.ones(200, dtype=np.float32), embedding_dim=1, ridge=0.01
    )
    by_class = [abs(np.corrcoef(_project(each, features)[:, 0], labels)[0, 1]) for each in (plain, aware)]
    assert by_class[0] < 0.3
    assert by_class[1] > 0.9


def test_an_image_whose_label_is_not_believed_does_not_count() -> None:
    features, labels, _ = _blobs()
    weights = np.ones(len(labels), dtype=np.float32)
    weights[0] = 0
    other = labels.copy()
    other[0] = (labels[0] + 1) % 4
    first, second = (
        fit_within_classes(features, given, weights=weights, embedding_dim=4) for given in (labels, other)
    )
    np.testing.assert_allclose(first.weight, second.weight, atol=1e-6)


def test_a_wide_head_gets_as_many_directions_as_it_is_wide() -> None:
    features, labels, weights = _blobs(count=DIRECTIONS + 100, width=DIRECTIONS + 20)
    wide = fit_within_classes(features, labels, weights=weights, embedding_dim=DIRECTIONS + 10)
    narrow = fit_within_classes(features, labels, weights=weights, embedding_dim=8)
    assert (len(wide.weight), len(narrow.weight)) == (DIRECTIONS + 10, DIRECTIONS)


def test_few_images_give_as_many_directions_as_they_span() -> None:
    features, labels, weights = _blobs(count=9, width=600)
    projection = fit_within_classes(features, labels, weights=weights, embedding_dim=8)
    assert projection.weight.shape == (8, 600)
    assert np.isfinite(projection.weight).all()


@pytest.mark.parametrize(("count", "width", "asked"), [(50, 8, 9), (5, 8, 5), (1, 8, 1)])
def test_a_width_that_the_images_cannot_span_is_refused_with_the_numbers(
    count: int, width: int, asked: int
) -> None:
    features, labels, weights = _blobs(count=count, width=width)
    with pytest.raises(
        InputError, match=rf"--embedding-dim {asked} .* at most {min(width, count - 1)} directions"
    ):
        fit_within_classes(features, labels, weights=weights, embedding_dim=asked)


def test_copies_constant_features_and_lone_images_are_survived() -> None:
    features, labels, weights = _blobs(count=40, width=12)
    features[1:20] = features[0]  # fewer directions than the images seem to span
    features[:, 7] = 0
    labels[-1] = 9  # of the classes between, there is no image
    weights[labels == 2] = 0
    projection = fit_within_classes(features, labels, weights=weights, embedding_dim=12)
    coordinates = _project(projection, features)
    assert np.isfinite(projection.weight).all()
    assert np.isfinite(projection.bias).all()
    assert np.square(coordinates).sum(axis=1).mean() == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_features_that_are_all_the_same_are_survived(value: float) -> None:
    features = np.full((20, 5), value, dtype=np.float32)
    weights = np.ones(20, dtype=np.float32)
    projection = fit_within_classes(features, np.arange(20) % 2, weights=weights, embedding_dim=3)
    assert np.isfinite(_project(projection, features)).all()
