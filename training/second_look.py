"""Leave-one-out twice: the second time, images count by how far the first believed their labels.

The constants were chosen on the three datasets of `benchmarks.audit`, under one seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.leave_one_out import LeaveOneOut

RIDGE = 1.0
BALANCE = (
    0.75  # classes of n images count n^0.75: 0 lets small ones count as much as large ones, 1 as many as they are
)
CALIBRATION = 0.5  # how far classes are brought to their share of the labels: 0 not at all, 1 fully
_LEAST = 0.05  # weight of an image that is not believed at all


def judge_twice(features: Tensor, labels: Tensor, *, class_count: int, groups: Tensor | None = None) -> Tensor:
    """(N, C) float32 confidences, rows sum to 1: the mean of two leave-one-out regressions, calibrated by class.

    With p_i the first one's confidences and y_i the given label, image i counts in the second with

        w_i = p_i(y_i) / (p_i(y_i) + max of p_i(c) over c other than y_i),     scaled to n_y^`BALANCE` within label y.

    In the mean of both, p(c) is multiplied by (share of label c / mean of p(c))^`CALIBRATION`: least squares gives
    classes that are hard to see too little. An image still does not judge itself, but the weights of others were found
    with it, so the second look is leave-one-out up to that.

    Arguments as those of `LeaveOneOut`.
    """
    first = _collect(LeaveOneOut(features, labels, class_count=class_count, groups=groups, ridge=RIDGE))
    weights = _weigh(first, labels, class_count=class_count)
    second = LeaveOneOut(features, labels, class_count=class_count, groups=groups, weights=weights, ridge=RIDGE)
    return _calibrate((first + _collect(second)) / 2, labels)


def _calibrate(confidences: Tensor, labels: Tensor) -> Tensor:
    share = torch.bincount(labels, minlength=confidences.shape[1]) / len(labels)
    mean = confidences.mean(dim=0).clamp(min=torch.finfo(confidences.dtype).tiny)
    scaled = confidences * (share / mean) ** CALIBRATION
    return scaled / scaled.sum(dim=1, keepdim=True)


def _collect(judge: LeaveOneOut) -> Tensor:
    return torch.cat([confidences for _, confidences in judge.blocks()])


def _weigh(confidences: Tensor, labels: Tensor, *, class_count: int) -> Tensor:
    """(N,) float64."""
    own = confidences.gather(1, labels[:, None])[:, 0]
    other = confidences.scatter(1, labels[:, None], -1).amax(dim=1)
    believed = (own / (own + other)).clamp(min=_LEAST).double()
    images = torch.bincount(labels, minlength=class_count).double()
    return believed * (images**BALANCE / torch.bincount(labels, weights=believed, minlength=class_count))[labels]
