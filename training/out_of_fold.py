"""Confidences from modules that have not seen the image: every fold is judged by one trained on the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from index.exact import Floats
from index.progress import Progress
from training.confidences import compute_confidences
from training.config import ConfidenceConfig, EmbeddingConfig
from training.fit import fit_confidence
from training.phases import PhaseContext
from training.sources import CachedSource

Labels = npt.NDArray[np.int64]


def fit_out_of_fold(
    features: Floats,
    labels: Labels,
    *,
    class_count: int,
    folds: int,
    groups: Labels | None,
    seed: int,
    device: torch.device,
    progress: Progress | None,
) -> Floats:
    """How far each image belongs to each class, by a confidence module that was trained without it.

    Args:
        features: (N, F) float32 backbone features.
        labels: (N,) int64 in 0..class_count-1.
        class_count: C.
        folds: parts of the images; each is judged by a module trained on the others.
        groups: (N,) int64; images with the same number are in one fold. None: every image stands for itself.
        seed: of the folds and of the modules.
        device: where the modules are trained.
        progress: called with (folds done, folds).

    Returns:
        (N, C) float32 in 0..1.
    """
    assigned = assign_folds(labels, folds=folds, groups=groups, seed=seed)
    everything, targets = torch.from_numpy(features).to(device), torch.from_numpy(labels).to(device)
    confidences = np.zeros((len(labels), class_count), dtype=np.float32)
    for fold in range(folds):
        held, train = np.flatnonzero(assigned == fold), np.flatnonzero(assigned != fold)
        if len(held):
            module = fit_confidence(
                CachedSource(everything[train][:, None]),
                targets[train],
                class_count=class_count,
                config=ConfidenceConfig(),
                batch_size=EmbeddingConfig().batch_size,
                weight_decay=EmbeddingConfig().weight_decay,
                context=PhaseContext(seed=seed, device=device, checkpoint=None),
            )
            confidences[held] = compute_confidences(module, everything[held]).cpu().numpy()
        if progress is not None:
            progress(fold + 1, folds)
    return confidences


def assign_folds(labels: Labels, *, folds: int, groups: Labels | None, seed: int) -> Labels:
    """A fold for every image, with the images of each class spread evenly over the folds.

    Groups of several images are placed first, the largest ones before the others, each where its classes have the
    fewest images so far; single images then fill up. Without groups a class differs by at most one image between
    folds.

    Args:
        labels: (N,) int64.
        folds: at least 2.
        groups: (N,) int64; a group is never parted. None: every image stands for itself.
        seed: which image goes where among those that are alike.

    Returns:
        (N,) int64 in 0..folds-1.
    """
    generator = np.random.default_rng(seed)
    numbers = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros((int(numbers.max(initial=-1)) + 1, folds), dtype=np.int64)
    assigned = np.full(len(labels), -1, dtype=np.int64)
    for rows in _large_groups(groups, generator):
        classes, images = np.unique(numbers[rows], return_counts=True)
        fullness = counts[classes].sum(axis=0)
        fold = np.lexsort((counts.sum(axis=0), fullness))[0]
        assigned[rows] = fold
        counts[classes, fold] += images
    singles = generator.permutation(np.flatnonzero(assigned < 0))
    singles = singles[np.argsort(numbers[singles], kind="stable")]
    for rows in np.split(singles, np.flatnonzero(np.diff(numbers[singles])) + 1):
        if len(rows):
            own = counts[numbers[rows[0]]]
            assigned[rows] = _fill_evenly(own, counts.sum(axis=0), images=len(rows))
            own += np.bincount(assigned[rows], minlength=folds)
    return assigned


def _large_groups(groups: Labels | None, generator: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """The rows of every group of several images, the largest first; equally large ones in random order."""
    if groups is None:
        return []
    order = np.argsort(groups, kind="stable")
    found = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    large = [rows for rows in found if len(rows) > 1]
    return sorted((large[i] for i in generator.permutation(len(large))), key=len, reverse=True)


def _fill_evenly(own: Labels, totals: Labels, *, images: int) -> npt.NDArray[np.int64]:
    """(images,) folds: each image goes where its class has the fewest; among those, where there are fewest at all."""
    folds = len(own)
    levels = own[:, None] + np.arange(images)  # (folds, images): how full the fold is when it takes its next image
    order = np.lexsort((np.repeat(totals, images), levels.ravel()))[:images]
    return np.repeat(np.arange(folds), images)[order]
