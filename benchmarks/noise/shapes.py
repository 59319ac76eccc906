"""How many images each training class has: as the dataset has it, or a long tail; and Recall@1 by class size."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from index.errors import InputError

FULL = "full"  # all images train
LEAST_IMAGES = 3  # of a class in a tail
BANDS = ("rare", "middle", "frequent")  # a third of the classes each, by their training images


def tail_factor(shape: str) -> float | None:
    """How many times the most frequent class outnumbers the rarest in `longtail:FACTOR`; None for `full`.

    Raises:
        InputError: no such shape.
    """
    if shape == FULL:
        return None
    match = re.fullmatch(r"longtail:(\d+(?:\.\d+)?)", shape)
    if match is None or float(match[1]) <= 1:
        raise InputError(f"a shape is {FULL} or longtail:FACTOR with a factor above 1, got {shape!r}")
    return float(match[1])


def name_shape(shape: str) -> list[str]:
    """What a name says of it: nothing of `full`."""
    return [] if shape == FULL else [shape]


def thin_classes(labels: np.ndarray, *, shape: str, seed: int) -> np.ndarray:
    """Sorted rows of the images that train: an exponential tail of class sizes, after Cui et al. (2019).

    Of C classes in an order drawn by the seed, the r-th (0..C-1) keeps its own size divided by factor^(r / (C - 1)),
    at least 3 images (all where it has fewer), drawn by the seed.

    Args:
        labels: (N,) int64 in 0..C-1, every class there.
    """
    factor = tail_factor(shape)
    if factor is None:
        return np.arange(len(labels))
    generator = np.random.default_rng([seed, 2])
    sizes = np.bincount(labels)
    ranks = np.empty(len(sizes))
    ranks[generator.permutation(len(sizes))] = np.linspace(0, 1, num=len(sizes))
    kept = np.minimum(sizes, np.maximum(LEAST_IMAGES, np.round(sizes / factor**ranks))).astype(np.int64)
    rows = [generator.permutation(np.flatnonzero(labels == label))[:most] for label, most in enumerate(kept)]
    return np.sort(np.concatenate(rows))


def recall_by_size(
    hits: np.ndarray, query_classes: np.ndarray, *, class_sizes: np.ndarray
) -> Mapping[str, float | None]:
    """Recall of the queries of rare, middle and frequent classes, a third of the classes each.

    Args:
        hits: (Q,) bool.
        query_classes: (Q,) int64, of each query's class.
        class_sizes: (C,) training images of every class, by their labels before the noise.

    Returns:
        By name of `BANDS`; None for a third without a query.
    """
    bands = np.empty(len(class_sizes), dtype=np.int64)
    for band, classes in enumerate(np.array_split(np.argsort(class_sizes, kind="stable"), len(BANDS))):
        bands[classes] = band
    asked = bands[query_classes]
    return {
        name: float(hits[asked == band].mean()) if (asked == band).any() else None
        for band, name in enumerate(BANDS)
    }
