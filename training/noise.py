"""Seeded label noise for experiments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.errors import InputError

Labels = npt.NDArray[np.int64]


def add_uniform_noise(labels: Labels, *, class_count: int, rate: float, seed: int) -> Labels:
    """Give exactly round(rate * N) samples a wrong label, drawn uniformly from the other classes.

    Args:
        labels: (N,) int64 in 0..class_count-1.
        class_count: C, at least 2.
        rate: share of the samples in 0..1.
        seed: of the samples chosen and of their new labels.

    Returns:
        (N,) int64, a new array.

    Raises:
        InputError: one class only, or a rate outside 0..1.
    """
    if class_count < 2:
        raise InputError(f"label noise needs at least two classes, got {class_count}")
    if not 0 <= rate <= 1:
        raise InputError(f"the noise rate must be in 0..1, got {rate}")
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(labels))[: round(rate * len(labels))]
    shift = generator.integers(1, class_count, size=len(chosen))  # never 0: the label always changes
    noisy = labels.copy()
    noisy[chosen] = (labels[chosen] + shift) % class_count
    return noisy
