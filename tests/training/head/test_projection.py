"""The methods without a step of training: PCA and whitening against their definition, and their scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import normalise_rows
from index.errors import InputError
from training.confidence.confidences import estimate_posteriors
from training.head.embedding_heads import ProjectionHead, RawHead
from training.head.untrained import (
    DIRECTIONS,
    FLATTEN,
    POWERS,
    RIDGE,
    LabelledFeatures,
    fit_principal_axes,
    fit_rival,
    fit_rivals,
    fit_untrained,
    fit_within_classes,
)
from training.options.losses import RIVALS, UNTRAINED_METHODS, WCCN
from training.run.searches import embed_features


def _features(count: int = 300, width: int = 12, *, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scales = np.linspace(3, 0.5, width)
    return (generator.normal(size=(count, width)) * scales + 1).astype(np.float32)


def _project(features: np.ndarray, *, embedding_dim: int, power: float) -> np.ndarray:
    return _transform(fit_principal_axes(features, embedding_dim=embedding_dim).projection(power=power), features)


def test_pca_and_whitening_agree_with_scikit_learn() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    features = _features()
    unit = normalise_rows(features).astype(np.float64)
    for whiten in (False, True):
        projected = _project(features, embedding_dim=5, power=whiten / 2)
        theirs = decomposition.PCA(5, whiten=whiten, svd_solver="full").fit_transform(unit)
        theirs *= np.sqrt(300 / 299) if whiten else 1  # it divides by N - 1, we by N
        signs = np.sign((projected * theirs).sum(axis=0))
        np.testing.assert_allclose(projected * signs, theirs, atol=1e-4)


def test_fitting_in_blocks_gives_what_one_block_gives() -> None:
    features = _features(4096 + 50)
    unit = normalise_rows(features).astype(np.float64)
    covariance = np.cov(unit.T, bias=True)
    weight = fit_principal_axes(features, embedding_dim=12).projection(power=0).weight.numpy().astype(np.float64)
    np.testing.assert_allclose(weight @ covariance @ weight.T, np.diag(np.linalg.eigvalsh(covariance)[::-1]), atol=1e-6)


@pytest.mark.parametrize(("count", "width", "asked"), [(50, 8, 9), (5, 8, 5), (1, 8, 1)])
def test_a_width_that_the_images_cannot_span_is_refused_with_the_numbers(count, width, asked) -> None:
    with pytest.raises(InputError, match=rf"--embedding-dim {asked} .* at most {min(width, count - 1)} directions"):
        fit_principal_axes(_features(count, width), embedding_dim=asked).projection(power=0.5)


@pytest.mark.parametrize("method", UNTRAINED_METHODS)
def test_a_head_says_its_width_and_gives_unit_rows_of_it(method: str) -> None:
    features = _features(40)
    head = fit_untrained(method, features, embedding_dim=5)
    rows = embed_features(head, features)
    assert head.embedding_dim == rows.shape[1] == (12 if method == "raw" else 5)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_raw_is_the_normalised_features_at_any_width_asked() -> None:
    features = _features()
    head = fit_untrained("raw", features, embedding_dim=9999)
    assert isinstance(head, RawHead)
    np.testing.assert_allclose(embed_features(head, features), normalise_rows(features), atol=1e-6)


@pytest.mark.parametrize(("method", "power"), [("pca", 0), ("pca-half-whitened", 0.25), ("pca-whitened", 0.5)])
def test_pca_whitens_as_far_as_its_name_says(method: str, power: float) -> None:
    features = _features()
    head, axes = fit_untrained(method, features, embedding_dim=5), fit_principal_axes(features, embedding_dim=5)
    assert isinstance(head, ProjectionHead)
    np.testing.assert_array_equal(head.weight.numpy(), axes.projection(power=power).weight.numpy())
    np.testing.assert_array_equal(head.bias.numpy(), axes.projection(power=power).bias.numpy())
    spread = (_project(features, embedding_dim=5, power=power) ** 2).mean(axis=0)
    np.testing.assert_allclose(spread, axes.variances ** (1 - 2 * power), rtol=1e-3)


def _labelled(count: int = 40) -> LabelledFeatures:
    return LabelledFeatures(_features(count), np.arange(count) % 3)


def test_within_class_whitening_weights_images_by_the_posteriors_of_their_labels() -> None:
    images = _labelled()
    source = torch.from_numpy(images.features)
    own = estimate_posteriors(source, torch.from_numpy(images.labels), class_count=3, groups=None).own.numpy()
    start = fit_within_classes(images.features, images.labels, weights=own, embedding_dim=5)
    head = fit_rival(WCCN, images, embedding_dim=5)
    np.testing.assert_array_equal(head.weight.numpy(), start.weight[:5])
    np.testing.assert_array_equal(head.bias.numpy(), start.bias[:5])
    believed = replace(images, weights=np.linspace(0, 1, 40, dtype=np.float32))
    other = fit_rival(WCCN, believed, embedding_dim=5)
    assert not np.array_equal(other.weight.numpy(), head.weight.numpy())


def test_one_method_refuses_a_width_that_the_comparison_of_all_narrows() -> None:
    with pytest.raises(InputError, match=r"--embedding-dim 8 exceeds .* at most 5 directions"):
        fit_untrained("pca", _features(6), embedding_dim=8)
    widths = {name: head.embedding_dim for name, head in fit_rivals(_labelled(6), embedding_dim=8).items()}
    assert widths == {"raw": 12, **dict.fromkeys((WCCN, *POWERS), 5)}
    assert set(widths) == set(RIVALS)


def test_the_head_of_one_method_is_that_of_the_comparison_of_all() -> None:
    features, heads = _features(seed=1), fit_rivals(_labelled(), embedding_dim=5)
    assert set(heads) == set(RIVALS)
    for method, head in heads.items():
        alone = fit_rival(method, _labelled(), embedding_dim=5)
        np.testing.assert_array_equal(embed_features(alone, features), embed_features(head, features))


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


def _transform(projection: ProjectionHead, features: np.ndarray) -> np.ndarray:
    return normalise_rows(features).astype(np.float64) @ projection.weight.numpy().T + projection.bias.numpy()


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
    assert (projection.weight.shape, projection.weight.dtype) == ((kept, 10), torch.float32)
    expected = _as_by_the_equation(features, labels, weights, ridge=ridge, flatten=flatten, kept=kept)
    _assert_same_up_to_signs(_transform(projection, features), expected, atol=1e-4)


def test_it_is_the_equation_in_several_blocks_and_by_default() -> None:
    features, labels, weights = _blobs(count=4096 + 100)
    projection = fit_within_classes(features, labels, weights=weights, embedding_dim=3)
    expected = _as_by_the_equation(features, labels, weights, ridge=RIDGE, flatten=FLATTEN, kept=10)
    _assert_same_up_to_signs(_transform(projection, features), expected, atol=1e-5)


def test_without_belief_in_any_label_it_is_pca_with_its_variances_evened_out() -> None:
    features, labels, weights = _blobs(width=6)
    projection = fit_within_classes(features, labels, weights=0 * weights, embedding_dim=6)
    axes = fit_principal_axes(features, embedding_dim=6)
    plain = _transform(axes.projection(power=0), features)
    _assert_same_up_to_signs(_transform(projection, features), plain / axes.variances**FLATTEN, atol=1e-4)


@pytest.mark.parametrize(("embedding_dim", "flatten"), [(2, FLATTEN), (5, 0.5)])
def test_the_first_coordinates_have_a_mean_squared_length_of_one(embedding_dim: int, flatten: float) -> None:
    features, labels, weights = _blobs()
    projection = fit_within_classes(features, labels, weights=weights, embedding_dim=embedding_dim, flatten=flatten)
    coordinates = _transform(projection, features)
    np.testing.assert_allclose(coordinates.mean(axis=0), 0, atol=1e-5)
    assert np.square(coordinates[:, :embedding_dim]).sum(axis=1).mean() == pytest.approx(1, rel=1e-3)


def test_a_wide_head_gets_as_many_directions_as_it_is_wide_and_few_images_as_they_span() -> None:
    features, labels, weights = _blobs(count=DIRECTIONS + 100, width=DIRECTIONS + 20)
    wide = fit_within_classes(features, labels, weights=weights, embedding_dim=DIRECTIONS + 10)
    narrow = fit_within_classes(features, labels, weights=weights, embedding_dim=8)
    features, labels, weights = _blobs(count=9, width=600)
    few = fit_within_classes(features, labels, weights=weights, embedding_dim=8)
    assert [len(found.weight) for found in (wide, narrow, few)] == [DIRECTIONS + 10, DIRECTIONS, 8]
    assert few.weight.isfinite().all()


def test_copies_constant_features_and_lone_images_are_survived() -> None:
    features, labels, weights = _blobs(count=40, width=12)
    features[1:20] = features[0]  # fewer directions than the images seem to span
    features[:, 7] = 0
    labels[-1] = 9  # of the classes between, there is no image
    weights[labels == 2] = 0
    projection = fit_within_classes(features, labels, weights=weights, embedding_dim=12)
    coordinates = _transform(projection, features)
    assert projection.weight.isfinite().all()
    assert projection.bias.isfinite().all()
    assert np.square(coordinates).sum(axis=1).mean() == pytest.approx(1, rel=1e-2)
    for value in (0.0, 1.0):
        same = np.full((20, 5), value, dtype=np.float32)
        weights = np.ones(20, dtype=np.float32)
        projection = fit_within_classes(same, np.arange(20) % 2, weights=weights, embedding_dim=3)
        assert np.isfinite(_transform(projection, same)).all()
