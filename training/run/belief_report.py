"""What was believed, and for which classes: how much images count in training, on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from index.arrays import Floats, Labels
from training.run.class_sizes import band_by_size, name_sizes

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


def describe_beliefs(beliefs: Mapping[str, Any] | None, *, run: str) -> list[str]:
    """Lines for people; none where nothing was judged."""
    if beliefs is None:
        return []
    bands = ", ".join(
        f"{100 * band['mean_weight']:.0f} % in classes of {name_sizes(*band['images'])} images"
        for band in beliefs["by_class_size"]
    )
    least = ", ".join(
        f"{found['class']} {100 * found['mean_weight']:.0f} %" for found in beliefs["least_believed"]
    )
    return [
        f"beliefs: labels are believed by {100 * beliefs['mean_weight']:.0f} % on average ({bands}); a right one "
        "that is hard to tell is believed little too",
        f"  least: {least}; `retrieval audit {run}` shows which labels look wrong",
    ]


def tell_beliefs(beliefs: Mapping[str, Any]) -> str:
    """One line while the training goes on."""
    least = ", ".join(f"{one['class']} {100 * one['mean_weight']:.0f} %" for one in beliefs["least_believed"][:3])
    return f"labels are believed by {100 * beliefs['mean_weight']:.0f} % on average, least: {least}"
