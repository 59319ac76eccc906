"""How likely each label is wrong, and which labels are given in place of which, from out-of-fold confidences."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.exact import Floats

Doubles = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
_TINY = 1e-6


def estimate_wrong(confidences: Floats, labels: Labels) -> Doubles:
    """The chance that each label is wrong.

    Every confidence is measured by what is usual for its class; the best other class then stands against the own.

    Args:
        confidences: (N, C) float32 in 0..1, out of fold.
        labels: (N,) int64 in 0..C-1.

    Returns:
        (N,) float64 in 0..1.
    """
    relative = confidences / _class_thresholds(confidences, labels)
    rows = np.arange(len(labels))
    own = relative[rows, labels]
    relative[rows, labels] = 0
    other = relative.max(axis=1)
    return np.divide(other, own + other, out=np.full(len(labels), 0.5), where=own + other > 0)


def estimate_noise(confidences: Floats, labels: Labels) -> Doubles:
    """Of the images labelled i, the share that show j (confident learning, Northcutt et al. 2021).

    An image counts for the likeliest of the classes in which it is at least as confident as those labelled so are on
    average; one without such a class counts for none.

    Args:
        confidences: (N, C) float32 in 0..1, out of fold.
        labels: (N,) int64 in 0..C-1.

    Returns:
        (C, C) float64; rows sum to 1, and the diagonal is the share of right labels.
    """
    count = confidences.shape[1]
    sure = np.where(confidences >= _class_thresholds(confidences, labels), confidences, -1)
    shown = sure.argmax(axis=1)
    counted = sure.max(axis=1) >= 0
    joint = np.zeros((count, count))
    np.add.at(joint, (labels[counted], shown[counted]), 1)
    empty = joint.sum(axis=1) == 0
    joint[empty, empty] = 1  # nothing is known of them: taken as right
    return joint / joint.sum(axis=1, keepdims=True)


def _class_thresholds(confidences: Floats, labels: Labels) -> Doubles:
    """(C,) mean confidence in each class of the images labelled so; 1 for a class without images."""
    count = confidences.shape[1]
    images = np.bincount(labels, minlength=count)
    own = np.bincount(labels, weights=confidences[np.arange(len(labels)), labels], minlength=count)
    return np.maximum(np.divide(own, images, out=np.ones(count), where=images > 0), _TINY)
