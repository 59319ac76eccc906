"""Principal axes of features, and the maps onto them that even their variances out or do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, normalise_rows
from index.errors import InputError

Doubles = npt.NDArray[np.float64]
_SMALLEST_VARIANCE_SHARE = (
    1e-7  # of the largest: directions below it are rounding, which whitening must not amplify
)


@dataclass(frozen=True, slots=True)
class Projection:
    """An affine map of L2-normalised features: `weight` (D, F) float32, `bias` (D,) float32."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True, slots=True)
class PrincipalAxes:
    """PCA of L2-normalised features: `mean` (F,), `variances` (D,) falling, `axes` (D, F), all float64."""

    mean: Doubles
    variances: Doubles
    axes: Doubles

    def projection(self, *, power: float = 0) -> Projection:
        """The map onto the axes, every direction divided by its variance to `power`: 0.5 whitens."""
        floor = _SMALLEST_VARIANCE_SHARE * max(self.variances[0], np.finfo(np.float32).tiny)
        weight = self.axes / np.maximum(self.variances, floor)[:, None] ** power
        return Projection(weight.astype(np.float32), (-weight @ self.mean).astype(np.float32))


def count_directions(features: Floats) -> int:
    """How many directions (N, F) features span at most, once they are centred."""
    count, width = features.shape
    return max(0, min(width, count - 1))


def fit_principal_axes(features: Floats, *, embedding_dim: int) -> PrincipalAxes:
    """The `embedding_dim` directions of most variance of the L2-normalised features, without labels.

    Args:
        features: (N, F) float32 of the training images.
        embedding_dim: D.

    Raises:
        InputError: D exceeds F or what N images span.
    """
    count, width = features.shape
    if embedding_dim > count_directions(features):
        raise InputError(
            f"--embedding-dim {embedding_dim} exceeds what PCA can give: {count} images of {width} features "
            f"span at most {count_directions(features)} directions"
        )
    unit = normalise_rows(features)
    mean = unit.mean(axis=0, dtype=np.float64)
    if count < width:  # the images span fewer directions than there are features: the same axes, far cheaper
        _, lengths, axes = np.linalg.svd(unit - mean, full_matrices=False)
        return PrincipalAxes(mean, lengths[:embedding_dim] ** 2 / count, axes[:embedding_dim])
    covariance = np.zeros((width, width))
    for start in range(0, count, 4096):  # blocked: the centred float64 copy of everything is never held
        centred = unit[start : start + 4096] - mean
        covariance += centred.T @ centred
    variances, vectors = np.linalg.eigh(covariance / count)
    top = np.argsort(variances)[::-1][:embedding_dim]
    return PrincipalAxes(mean, variances[top], vectors[:, top].T)
