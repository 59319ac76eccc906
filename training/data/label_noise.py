"""Seeded label noise for experiments; only the labels of drawn samples change, always to another class."""

import logging

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage

from index.arrays import Floats, normalise_rows
from index.errors import InputError
from index.vectors.exact import search
from training.options.config import LabelNoise

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.int64]
NEAREST = 5  # classes that nearest-class noise draws from


def add_label_noise(
    labels: Labels, *, noise: LabelNoise, class_count: int, seed: int, features: Floats | None = None
) -> Labels:
    """Give some samples a wrong label: a new (N,) int64 array of 0..C-1.

    uniform: exactly round(rate N) samples get one drawn uniformly from the other classes.
    nearest-class: exactly round(rate N) get one of the `NEAREST` classes most like their own, drawn uniformly.
    small-cluster: exactly round(rate N) get that of another class, in clusters of similar images (PRISM, section 4):
        classes drawn at random lose all of their images, until enough labels are wrong. Their images then belong to no
        class that trains (open-set noise).
    open-set: as small-cluster, but every image gets a label of its own.

    `features` (N, F) float32 are for nearest-class and small-cluster.
    """
    noisy, generator = labels.copy(), np.random.default_rng(seed)
    if class_count < 2:
        raise InputError(f"label noise needs at least two classes, got {class_count}")
    if noise.kind in ("small-cluster", "open-set"):
        wrong, alike = round(noise.rate * len(labels)), features if noise.kind == "small-cluster" else None
        return _scatter_classes(alike, labels, wrong, count=class_count, generator=generator)
    chosen = generator.permutation(len(labels))[: round(noise.rate * len(labels))]
    if noise.kind == "nearest-class" and len(chosen):
        assert features is not None
        present, neighbours = _find_nearest(features, labels)
        own = np.searchsorted(present, labels[chosen])
        noisy[chosen] = neighbours[own, generator.integers(neighbours.shape[1], size=len(chosen))]
    else:
        shift = generator.integers(1, class_count, size=len(chosen))  # never 0: the label always changes
        noisy[chosen] = (labels[chosen] + shift) % class_count
    return noisy


def _scatter_classes(
    features: Floats | None, labels: Labels, wrong: int, *, count: int, generator: np.random.Generator
) -> Labels:
    """(N,) labels of which `wrong` are wrong, as classes are drawn whose clusters go to other classes.

    A class of n images has n / 2 clusters, as in the paper, of which we take Ward's, as it does not name a method; n
    without features. A cluster goes to a random class that is not drawn; where all are, to any other class. The last
    class drawn loses as many images as are missing.
    """
    noisy, present = labels.copy(), np.unique(labels)
    order = generator.permutation(present)
    drawn = order[: int(np.searchsorted(np.bincount(labels, minlength=count)[order].cumsum(), wrong)) + (wrong > 0)]
    kept = np.setdiff1d(present, drawn)
    for own in drawn:
        rows = np.flatnonzero(labels == own)
        clusters = np.arange(len(rows)) if features is None else _cluster(features[rows])
        shuffled = generator.permutation(clusters.max() + 1)[clusters]
        taken = np.argsort(shuffled, kind="stable")[:wrong]  # whole clusters, but for the last one
        targets = kept if len(kept) else np.delete(np.arange(count), own)
        noisy[rows[taken]] = generator.choice(targets, size=clusters.max() + 1)[shuffled[taken]]
        wrong -= len(taken)
    return noisy


def _cluster(features: Floats) -> Labels:
    """(n,) numbers from 0 of n / 2 clusters of similar rows, fewer where rows are equal."""
    if len(features) < 2:
        return np.zeros(len(features), dtype=np.int64)
    merges = linkage(normalise_rows(features).astype(np.float64), method="ward")
    return np.asarray(fcluster(merges, t=max(1, len(features) // 2), criterion="maxclust"), dtype=np.int64) - 1


def _find_nearest(features: Floats, labels: Labels) -> tuple[Labels, Labels]:
    """Present classes (C,), and for each the numbers (C, K) of the most similar ones.

    Similarity is the cosine of the class means of L2-normalised features. Classes without samples are never near; where
    fewer than `NEAREST` others have some, all of those are.
    """
    present = np.unique(labels)
    if len(present) == 1:
        raise InputError("nearest-class noise needs samples of at least two classes, got one")
    width = min(NEAREST, len(present) - 1)
    if width == len(present) - 1:
        logger.warning("nearest-class noise among %d classes is uniform: all others are nearest", len(present))
    rows_by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels)[present])[:-1])
    means = np.stack([normalise_rows(features[rows]).mean(axis=0, dtype=np.float64) for rows in rows_by_class])
    unit = normalise_rows(means.astype(np.float32))
    return present, present[search(unit, unit, k=width, own=np.arange(len(present))).rows]
