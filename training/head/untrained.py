"""Closed-form projections: PCA and within-class whitening, as methods and as initialisations."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from index.arrays import Doubles, Floats, Ids, Labels, normalise_rows
from index.errors import InputError
from training.confidence.confidences import estimate_posteriors
from training.head.embedding_heads import Head, ProjectionHead, RawHead
from training.options.losses import WCCN

# Of the largest variance: directions below it are rounding, which whitening must not amplify.
_SMALLEST_VARIANCE_SHARE = 1e-7


@dataclass(frozen=True, slots=True)
class PrincipalAxes:
    """PCA of L2-normalised features: `mean` (F,), `variances` (D,) descending, `axes` (D, F), all float64."""

    mean: Doubles
    variances: Doubles
    axes: Doubles

    def projection(self, *, power: float = 0) -> ProjectionHead:
        """Map onto the axes, each direction divided by its variance to `power`: 0.5 whitens."""
        floor = _SMALLEST_VARIANCE_SHARE * max(self.variances[0], np.finfo(np.float32).tiny)
        weight = self.axes / np.maximum(self.variances, floor)[:, None] ** power
        return _as_head(weight, self.mean)


def count_directions(features: Floats) -> int:
    """Most directions that (N, F) features can span once they are centred."""
    return max(0, min(features.shape[1], len(features) - 1))


def fit_principal_axes(features: Floats, *, embedding_dim: int) -> PrincipalAxes:
    """The `embedding_dim` directions of most variance of (N, F) float32 features, L2-normalised."""
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


DIRECTIONS = 512  # of most variance that whitening works on; the others are mostly noise
RIDGE = 1.0  # times the mean variance within classes, added to every direction: whitening never trusts one fully
FLATTEN = 0.1  # how far the kept directions' variances are evened out: 0 not at all, 0.5 whitened again


def fit_within_classes(
    features: Floats,
    labels: np.ndarray,
    *,
    weights: Floats,
    embedding_dim: int,
    directions: int = DIRECTIONS,
    ridge: float = RIDGE,
    flatten: float = FLATTEN,
) -> ProjectionHead:
    """Within-class whitening (WCCN, Hatch et al. 2006): directions that separate classes, the best first.

    With unit features on their top principal axes x, weights w_i and weighted class means m_c,

        S_w = sum_i w_i (x_i - m_{y_i}) (x_i - m_{y_i})' / sum_i w_i,     A = (S_w + ridge mean(diag S_w) I)^(-1/2)

    then the principal axes of all Ax, each divided by its variance to the power `flatten`. With weights of 0 this is
    PCA.

    Returns a projection of (N, F) features onto K = max(D, directions) directions, fewer where F or N allow no more, of
    which the first D initialise a head; the mean squared length of the images' first D coordinates is 1. `weights` (N,)
    are confidences in the labels, in 0..1. docs/recipe.md compares other constants.
    """
    spanned = count_directions(features)
    if embedding_dim > spanned:
        raise InputError(
            f"--embedding-dim {embedding_dim} exceeds what --init wccn can give: {features.shape[0]} images of "
            f"{features.shape[1]} features span at most {spanned} directions; lower it, or choose --init random"
        )
    axes = fit_principal_axes(features, embedding_dim=min(spanned, max(embedding_dim, directions)))
    coordinates = (normalise_rows(features) - axes.mean.astype(np.float32)) @ axes.axes.T.astype(np.float32)
    within = _scatter_within(coordinates, labels, weights=weights)
    width = len(axes.variances)
    within += (ridge * np.trace(within) / width + _smallest(axes.variances)) * np.eye(width)
    values, vectors = np.linalg.eigh(within)
    whiten = (vectors / np.sqrt(values)) @ vectors.T  # (K, K), symmetric
    variances, rotation = np.linalg.eigh((whiten * axes.variances) @ whiten)
    order = np.argsort(variances)[::-1]
    variances = np.maximum(variances[order], _smallest(variances))
    weight = (rotation[:, order] / variances**flatten).T @ whiten @ axes.axes  # (K, F)
    length = np.sqrt((variances ** (1 - 2 * flatten))[:embedding_dim].sum())
    return _as_head(weight / length, axes.mean)


def _scatter_within(coordinates: Floats, labels: np.ndarray, *, weights: Floats) -> Doubles:
    """(K, K) weighted covariance around the weighted class means; zeros where all weights are."""
    weights = weights.astype(np.float64)
    counts = np.bincount(labels, weights=weights)
    sums = np.zeros((len(counts), coordinates.shape[1]))
    total = np.zeros((coordinates.shape[1],) * 2)
    for start in range(0, len(labels), 4096):  # blocked: no float64 copy of everything
        rows = slice(start, start + 4096)
        weighted = coordinates[rows] * weights[rows, None]
        np.add.at(sums, labels[rows], weighted)
        total += weighted.T @ coordinates[rows]
    means = sums / np.maximum(counts, np.finfo(np.float64).tiny)[:, None]
    return (total - means.T @ sums) / max(weights.sum(), np.finfo(np.float64).tiny)


def _smallest(variances: Doubles) -> float:
    """Least variance to divide by."""
    return max(_SMALLEST_VARIANCE_SHARE * float(variances.max()), float(np.finfo(np.float32).tiny))


UNTRAINED_DIM = 256  # of the output for label-error detection: see docs/results/labels.md
POWERS: Mapping[str, float] = MappingProxyType({"pca": 0.0, "pca-half-whitened": 0.25, "pca-whitened": 0.5})
"""Power of its variance by which every direction of PCA is divided."""


@dataclass(frozen=True, slots=True)
class LabelledFeatures:
    """(N, F) features and (N,) given labels in 0..C-1 of training images.

    `copies` (N,) are equal for near-duplicates, which leave-one-out leaves out together; `groups` (N,) are equal for
    photos of one group, which do not find each other. `weights` (N,) are in 0..1; None: the own posteriors.
    """

    features: Floats
    labels: Labels
    copies: Ids | None = None
    groups: Ids | None = None
    weights: Floats | None = None

    def take(self, rows: np.ndarray) -> "LabelledFeatures":
        """Some of the images, with their classes numbered anew."""
        parts = (None if part is None else part[rows] for part in (self.copies, self.groups, self.weights))
        labels = np.unique(self.labels[rows], return_inverse=True)[1].astype(np.int64)
        return LabelledFeatures(self.features[rows], labels, *parts)

    def weigh(self) -> Floats:
        """(N,) float32: `weights`, or the posteriors of the given labels."""
        if self.weights is not None:
            return self.weights
        features, count = torch.from_numpy(self.features), int(self.labels.max()) + 1
        copies = None if self.copies is None else torch.from_numpy(self.copies)
        found = estimate_posteriors(features, torch.from_numpy(self.labels), class_count=count, groups=copies)
        return found.own.numpy()


def fit_rival(method: str, images: LabelledFeatures, *, embedding_dim: int) -> Head:
    """Head of one method of `RIVALS`; raw features keep their width."""
    if method != WCCN:
        return fit_untrained(method, images.features, embedding_dim=embedding_dim)
    start = fit_within_classes(images.features, images.labels, weights=images.weigh(), embedding_dim=embedding_dim)
    return ProjectionHead(start.weight[:embedding_dim].clone(), start.bias[:embedding_dim].clone())


def fit_closed_form(images: LabelledFeatures, *, embedding_dim: int) -> ProjectionHead:
    """Within-class whitening, with rows of 0 where the images span fewer directions."""
    found = fit_rival(WCCN, images, embedding_dim=min(embedding_dim, count_directions(images.features)))
    assert isinstance(found, ProjectionHead)
    missing = embedding_dim - len(found.weight)
    weight = nn.functional.pad(found.weight, (0, 0, 0, missing))
    return ProjectionHead(weight, nn.functional.pad(found.bias, (0, missing)))


def fit_untrained(method: str, features: Floats, *, embedding_dim: int) -> Head:
    """Head of one method of `UNTRAINED_METHODS` on (N, F) float32 features; raw features keep their width."""
    if method == "raw":
        return RawHead(features.shape[1])
    return fit_principal_axes(features, embedding_dim=embedding_dim).projection(power=POWERS[method])


def fit_rivals(images: LabelledFeatures, *, embedding_dim: int) -> dict[str, Head]:
    """Heads of `RIVALS`, less wide where the images span fewer directions."""
    width = min(embedding_dim, count_directions(images.features))
    axes = fit_principal_axes(images.features, embedding_dim=width)
    return {
        WCCN: fit_rival(WCCN, images, embedding_dim=width),
        "raw": RawHead(images.features.shape[1]),
        **{method: axes.projection(power=power) for method, power in POWERS.items()},
    }


def _as_head(weight: Doubles, mean: Doubles) -> ProjectionHead:
    """The map x -> weight (x - mean) of L2-normalised features, in float32."""
    parts = (weight.astype(np.float32), (-weight @ mean).astype(np.float32))
    return ProjectionHead(*(torch.from_numpy(part) for part in parts))
