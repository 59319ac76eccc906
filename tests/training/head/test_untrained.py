"""The methods without a step of training: raw features, PCA, whitening."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from index.arrays import normalise_rows
from index.errors import InputError
from index.labels.leave_one_out import LeaveOneOut
from training.head.embedding_heads import ProjectionHead, RawHead
from training.head.projection import fit_principal_axes
from training.head.untrained import POWERS, LabelledFeatures, fit_rival, fit_rivals, fit_untrained
from training.head.whitening import fit_within_classes
from training.options.losses import CLASS_WHITENED, RIVALS, UNTRAINED_METHODS
from training.run.validate import embed_features


def _features(count: int = 40, width: int = 12) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(count, width)) * np.linspace(3, 0.5, width) + 1).astype(
        np.float32
    )


@pytest.mark.parametrize("method", UNTRAINED_METHODS)
def test_a_head_says_its_width_and_gives_unit_rows_of_it(method: str) -> None:
    features = _features()
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
    head = fit_untrained(method, features, embedding_dim=5)
    assert isinstance(head, ProjectionHead)
    expected = fit_principal_axes(features, embedding_dim=5).projection(power=power)
    np.testing.assert_array_equal(head.weight.numpy(), expected.weight)
    np.testing.assert_array_equal(head.bias.numpy(), expected.bias)
    spread = (embed_axes(head, features) ** 2).mean(axis=0)
    np.testing.assert_allclose(
        spread, fit_principal_axes(features, embedding_dim=5).variances ** (1 - 2 * power), rtol=1e-3
    )


def embed_axes(head: ProjectionHead, features: np.ndarray) -> np.ndarray:
    """(N, D) coordinates before the last normalisation."""
    return normalise_rows(features).astype(np.float64) @ head.weight.numpy().T + head.bias.numpy()


def _labelled(count: int = 40) -> LabelledFeatures:
    return LabelledFeatures(_features(count), np.arange(count) % 3)


def test_class_whitening_is_the_start_of_a_trained_head_with_the_beliefs_of_leave_one_out() -> None:
    images = _labelled()
    own = np.square(LeaveOneOut(images.features, images.labels, count=3).own_against_others())
    start = fit_within_classes(images.features, images.labels, weights=own, embedding_dim=5)
    head = fit_rival(CLASS_WHITENED, images, embedding_dim=5)
    np.testing.assert_array_equal(head.weight.numpy(), start.weight[:5])
    np.testing.assert_array_equal(head.bias.numpy(), start.bias[:5])
    believed = replace(images, weights=np.linspace(0, 1, 40, dtype=np.float32))
    other = fit_rival(CLASS_WHITENED, believed, embedding_dim=5)
    assert not np.array_equal(other.weight.numpy(), head.weight.numpy())


def test_one_method_refuses_a_width_that_the_comparison_of_all_narrows() -> None:
    with pytest.raises(InputError, match=r"--embedding-dim 8 exceeds .* at most 5 directions"):
        fit_untrained("pca", _features(6), embedding_dim=8)
    widths = {name: head.embedding_dim for name, head in fit_rivals(_labelled(6), embedding_dim=8).items()}
    assert widths == {"raw": 12, **dict.fromkeys((CLASS_WHITENED, *POWERS), 5)}
    assert set(widths) == set(RIVALS)


@pytest.mark.parametrize("method", RIVALS)
def test_the_head_of_one_method_is_that_of_the_comparison_of_all(method: str) -> None:
    features = _features()
    one, all_ = (
        embed_features(head, features)
        for head in (
            fit_rival(method, _labelled(), embedding_dim=5),
            fit_rivals(_labelled(), embedding_dim=5)[method],
        )
    )
    np.testing.assert_array_equal(one, all_)
