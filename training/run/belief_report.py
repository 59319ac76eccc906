"""How much images count in training on average, by class size and for which classes least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from index.arrays import Floats, Labels
from training.run.class_sizes import band_by_size

_SHOWN = 5  # classes that are believed least
_WEIGHT = "weight"


def summarise_beliefs(weights: Floats, labels: Labels, *, classes: Sequence[str]) -> dict[str, Any]:
    """Plain JSON values: the mean weight of all images, by class size, and of the classes that count least.

    Args:
        weights: (N,) in 0..1 how much each image counts.
        labels: (N,) int64 in 0..C-1.
        classes: the C names.
    """
    sizes = np.bincount(labels, minlength=len(classes))
    means = np.bincount(labels, weights=weights, minlength=len(classes)) / np.maximum(sizes, 1)
    least = [row for row in np.argsort(means, kind="stable").tolist() if sizes[row]][:_SHOWN]
    bands = band_by_size(sizes[labels], labels, {_WEIGHT: weights.astype(np.float64)})
    return {
        "mean_weight": float(weights.mean()),
        "by_class_size": [
            {"images": [band.least, band.most], "classes": band.classes, "mean_weight": band.recall[_WEIGHT]}
            for band in bands
        ],
        "least_believed": [
            {"class": classes[row], "images": int(sizes[row]), "mean_weight": float(means[row])} for row in least
        ],
    }
