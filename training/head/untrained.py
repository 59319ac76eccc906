"""The methods that train nothing: raw features, PCA, whitened PCA; fitted on training images without their labels."""

from __future__ import annotations

import torch

from index.arrays import Floats
from training.head.embedding_heads import Head, ProjectionHead, RawHead
from training.head.projection import PrincipalAxes, count_directions, fit_principal_axes
from training.options.losses import UNTRAINED_METHODS


def fit_untrained(method: str, features: Floats, *, embedding_dim: int) -> Head:
    """The head of one untrained method.

    Args:
        method: of `UNTRAINED_METHODS`.
        features: (N, F) float32 of the training images.
        embedding_dim: D; raw features have their own width F.

    Raises:
        InputError: the images do not span that many directions.
    """
    if method == "raw":
        return RawHead(features.shape[1])
    return make_projection_head(fit_principal_axes(features, embedding_dim=embedding_dim), method)


def fit_all_untrained(features: Floats, *, embedding_dim: int) -> dict[str, Head]:
    """The heads of all untrained methods; where the images span fewer directions, projections are less wide."""
    width = min(embedding_dim, count_directions(features))
    axes = fit_principal_axes(features, embedding_dim=width)
    heads = {method: make_projection_head(axes, method) for method in UNTRAINED_METHODS if method != "raw"}
    return {"raw": RawHead(features.shape[1]), **heads}


def make_projection_head(axes: PrincipalAxes, method: str) -> ProjectionHead:
    """The head of `pca` or `pca-whitened`."""
    projection = axes.projection(whiten=method == "pca-whitened")
    return ProjectionHead(torch.from_numpy(projection.weight), torch.from_numpy(projection.bias))
