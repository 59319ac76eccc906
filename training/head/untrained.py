"""The methods without a step of training: raw features, PCA more or less whitened, whitening within classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from index.arrays import Floats, Ids, Labels
from index.labels.leave_one_out import LeaveOneOut
from training.head.embedding_heads import Head, ProjectionHead, RawHead
from training.head.projection import (
    PrincipalAxes,
    Projection,
    count_directions,
    fit_principal_axes,
    fit_within_classes,
)
from training.options.losses import CLASS_WHITENED

UNTRAINED_DIM = 256  # of the output that labels are judged by: see docs/results/labels.md
POWERS: Mapping[str, float] = MappingProxyType({"pca": 0.0, "pca-half-whitened": 0.25, "pca-whitened": 0.5})
"""Of its variance, by which every direction of PCA is divided."""


@dataclass(frozen=True, slots=True)
class LabelledFeatures:
    """What methods are fitted on: N training images.

    Attributes:
        features: (N, F) float32.
        labels: (N,) int64 given labels in 0..C-1.
        groups: (N,) int64, the same for duplicates, which must not vouch for each other's labels; None: there are none.
        weights: (N,) float32 in 0..1 how much each image counts, as `Beliefs` has them, where these are known already.
    """

    features: Floats
    labels: Labels
    groups: Ids | None = None
    weights: Floats | None = None

    def weigh(self) -> Floats:
        """(N,) float32: `weights`, or those of leave-one-out."""
        if self.weights is not None:
            return self.weights
        count = int(self.labels.max()) + 1
        judge = LeaveOneOut(self.features, self.labels, count=count, groups=self.groups)
        return np.square(judge.own_against_others())


def fit_rival(method: str, images: LabelledFeatures, *, embedding_dim: int) -> Head:
    """The head of one method of `RIVALS`.

    Args:
        method: `class-whitened` reads the labels, the others do not.
        embedding_dim: D; raw features have their own width F.

    Raises:
        InputError: the images do not span that many directions.
    """
    if method != CLASS_WHITENED:
        return fit_untrained(method, images.features, embedding_dim=embedding_dim)
    start = fit_within_classes(images.features, images.labels, weights=images.weigh(), embedding_dim=embedding_dim)
    return _as_head(Projection(start.weight[:embedding_dim], start.bias[:embedding_dim]))


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


def fit_rivals(images: LabelledFeatures, *, embedding_dim: int) -> dict[str, Head]:
    """The heads of `RIVALS`; where the images span fewer directions, projections are less wide."""
    width = min(embedding_dim, count_directions(images.features))
    axes = fit_principal_axes(images.features, embedding_dim=width)
    return {
        CLASS_WHITENED: fit_rival(CLASS_WHITENED, images, embedding_dim=width),
        "raw": RawHead(images.features.shape[1]),
        **{method: make_projection_head(axes, method) for method in POWERS},
    }


def make_projection_head(axes: PrincipalAxes, method: str) -> ProjectionHead:
    """The head of one method of `POWERS`."""
    return _as_head(axes.projection(power=POWERS[method]))


def _as_head(projection: Projection) -> ProjectionHead:
    weight, bias = (torch.from_numpy(part.copy()) for part in (projection.weight, projection.bias))
    return ProjectionHead(weight, bias)
