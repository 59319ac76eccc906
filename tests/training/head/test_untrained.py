"""The methods that train nothing: raw features, PCA and whitened PCA."""

from __future__ import annotations

import numpy as np
import pytest

from index.arrays import normalise_rows
from index.errors import InputError
from training.head.embedding_heads import ProjectionHead, RawHead
from training.head.projection import fit_principal_axes
from training.head.untrained import fit_all_untrained, fit_untrained
from training.options.losses import UNTRAINED_METHODS
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


@pytest.mark.parametrize(("method", "whiten"), [("pca", False), ("pca-whitened", True)])
def test_pca_whitens_only_where_it_is_asked_to(method: str, whiten: bool) -> None:
    features = _features()
    head = fit_untrained(method, features, embedding_dim=5)
    assert isinstance(head, ProjectionHead)
    expected = fit_principal_axes(features, embedding_dim=5).projection(whiten=whiten)
    np.testing.assert_array_equal(head.weight.numpy(), expected.weight)
    np.testing.assert_array_equal(head.bias.numpy(), expected.bias)


def test_one_method_refuses_a_width_that_the_comparison_of_all_narrows() -> None:
    with pytest.raises(InputError, match=r"--embedding-dim 8 exceeds .* at most 5 directions"):
        fit_untrained("pca", _features(6), embedding_dim=8)
    widths = {name: head.embedding_dim for name, head in fit_all_untrained(_features(6), embedding_dim=8).items()}
    assert widths == {"raw": 12, "pca": 5, "pca-whitened": 5}
    assert set(widths) == set(UNTRAINED_METHODS)


@pytest.mark.parametrize("method", UNTRAINED_METHODS)
def test_the_head_of_one_method_is_that_of_the_comparison_of_all(method: str) -> None:
    features = _features()
    one, all_ = (
        embed_features(head, features)
        for head in (
            fit_untrained(method, features, embedding_dim=5),
            fit_all_untrained(features, embedding_dim=5)[method],
        )
    )
    np.testing.assert_array_equal(one, all_)
