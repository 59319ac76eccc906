"""PCA and whitening against their definition, and the scores of the untrained baselines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import normalise_rows
from index.errors import InputError
from training.head.projection import fit_principal_axes
from training.head.untrained import LabelledFeatures, fit_rivals, fit_untrained
from training.options.losses import RIVALS
from training.run.validate import ValidationSet, embed_features


def _features(count: int = 300, width: int = 12, *, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scales = np.linspace(3, 0.5, width)
    return (generator.normal(size=(count, width)) * scales + 1).astype(np.float32)


def _project(features: np.ndarray, *, embedding_dim: int, power: float) -> np.ndarray:
    projection = fit_principal_axes(features, embedding_dim=embedding_dim).projection(power=power)
    return normalise_rows(features).astype(np.float64) @ projection.weight.T + projection.bias


@given(seed=st.integers(0, 1000), embedding_dim=st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_pca_agrees_with_the_singular_value_decomposition(seed: int, embedding_dim: int) -> None:
    features = _features(seed=seed)
    projected = _project(features, embedding_dim=embedding_dim, power=0)
    unit = normalise_rows(features).astype(np.float64)
    left, values, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    expected = (left * values)[:, :embedding_dim]
    signs = np.sign((projected * expected).sum(axis=0))
    np.testing.assert_allclose(projected * signs, expected, atol=2e-5)


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


def test_whitened_features_have_identity_covariance() -> None:
    projected = _project(_features(), embedding_dim=8, power=0.5)
    np.testing.assert_allclose(projected.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(projected.T @ projected / len(projected), np.eye(8), atol=1e-3)


def test_fitting_in_blocks_gives_what_one_block_gives() -> None:
    features = _features(4096 + 50)
    unit = normalise_rows(features).astype(np.float64)
    covariance = np.cov(unit.T, bias=True)
    weight = fit_principal_axes(features, embedding_dim=12).projection(power=0).weight.astype(np.float64)
    np.testing.assert_allclose(
        weight @ covariance @ weight.T, np.diag(np.linalg.eigvalsh(covariance)[::-1]), atol=1e-6
    )


def test_the_head_gives_the_projection_as_unit_rows() -> None:
    features = _features()
    rows = embed_features(fit_untrained("pca-whitened", features, embedding_dim=4), features)
    projected = _project(features, embedding_dim=4, power=0.5)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, projected / np.linalg.norm(projected, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize(("count", "width", "asked"), [(50, 8, 9), (5, 8, 5), (1, 8, 1)])
def test_a_width_that_the_images_cannot_span_is_refused_with_the_numbers(
    count: int, width: int, asked: int
) -> None:
    with pytest.raises(
        InputError, match=rf"--embedding-dim {asked} .* at most {min(width, count - 1)} directions"
    ):
        fit_principal_axes(_features(count, width), embedding_dim=asked).projection(power=0.5)


def test_zero_rows_stay_zero() -> None:
    rows = normalise_rows(np.array([[0, 0], [3, 4]], dtype=np.float32))
    np.testing.assert_allclose(rows, [[0, 0], [0.6, 0.8]])


def test_recall_of_separated_classes_is_one_and_never_counts_the_query_itself() -> None:
    rows = normalise_rows(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [-1, -1]], dtype=np.float32))
    scores = ValidationSet(rows, np.array([0, 0, 1, 1, 2])).score(rows)
    assert scores.recall[1] == 1.0
    assert scores.lone_queries == 1
    mixed = ValidationSet(rows, np.array([0, 1, 0, 1, 2])).score(rows)
    assert mixed.recall[1] == 0.0


def test_rivals_are_fitted_on_the_training_features_at_no_more_than_they_span() -> None:
    rivals = fit_rivals(LabelledFeatures(_features(6), np.arange(6) % 2), embedding_dim=64)
    assert set(rivals) == set(RIVALS)
    narrow = fit_untrained("pca-whitened", _features(6), embedding_dim=5)
    assert rivals["pca-whitened"].embedding_dim == 5
    others = _features(40, seed=1)
    np.testing.assert_array_equal(embed_features(rivals["pca-whitened"], others), embed_features(narrow, others))
