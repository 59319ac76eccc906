"""The confidences of phase 1: of every image, and as phase 2 reads them, of the view in a step or fixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from training.leave_one_out import LeaveOneOut
from training.model import ConfidenceModule
from training.sources import FeatureSource

_FIXED_VALUES = 1 << 28  # N x C confidences that are kept in memory at most: 1 GiB


class Confidences(Protocol):
    """Class confidences of training images, from a trained and frozen confidence module."""

    def batch(self, rows: Tensor, features: Tensor) -> Tensor:
        """(B, C) in 0..1 of the images `rows` (B,) seen as `features` (B, F)."""


class ViewConfidences:
    """The module asked for every view again."""

    def __init__(self, module: ConfidenceModule) -> None:
        self._module = module

    @torch.no_grad()
    def batch(self, rows: Tensor, features: Tensor) -> Tensor:
        return self._module(features)


class FixedConfidences:
    """(N, C) confidences in memory, for images with one view."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def batch(self, rows: Tensor, features: Tensor) -> Tensor:
        return self.values[rows]

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, (B, C)) of all images in order, a block at a time."""
        for rows in torch.arange(len(self.values), device=self.values.device).split(4096):
            yield rows, self.values[rows]


class LeaveOneOutConfidences:
    """Those of a classifier that has seen all images but the one asked for; the view does not matter."""

    def __init__(self, judge: LeaveOneOut) -> None:
        self._judge = judge

    def batch(self, rows: Tensor, features: Tensor) -> Tensor:
        return self._judge.confidences(rows)


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What phase 1 found.

    Attributes:
        own: (N,) float32 confidence of every image in its own label.
        confidences: in all classes, as phase 2 reads them.
        judge: asked for (rows, (B, C) confidences) of all images in order, a block at a time.
    """

    own: Tensor
    confidences: Confidences
    judge: Judge


class Judge(Protocol):
    """Confidences of all training images."""

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, (B, C)) of all images in order, a block at a time."""


@dataclass(frozen=True, slots=True)
class ModuleJudge:
    """The trained confidence module on the centre crops it was trained on."""

    module: ConfidenceModule
    centre: Tensor

    @torch.inference_mode()
    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.arange(len(self.centre)).split(4096):
            yield rows, self.module(self.centre[rows.to(self.centre.device)])


def believe_module(module: ConfidenceModule, source: FeatureSource, labels: Tensor) -> Beliefs:
    """The beliefs of a trained confidence module."""
    judge = ModuleJudge(module, source.centre)
    own = torch.cat([c.gather(1, labels[rows, None])[:, 0] for rows, c in judge.blocks()])
    return Beliefs(own, make_confidences(module, source), judge)


def believe_others(source: FeatureSource, labels: Tensor, *, class_count: int, groups: Tensor | None) -> Beliefs:
    """The beliefs of a classifier that has not seen the image it judges, nor others of its group."""
    judge = LeaveOneOut(source.centre, labels, class_count=class_count, groups=groups)
    values = len(source.centre) * class_count
    if values <= _FIXED_VALUES:
        fixed = FixedConfidences(torch.cat([confidences for _, confidences in judge.blocks()]))
        return Beliefs(fixed.values.gather(1, labels[:, None])[:, 0], fixed, fixed)
    return Beliefs(judge.own, LeaveOneOutConfidences(judge), judge)


def make_confidences(module: ConfidenceModule, source: FeatureSource) -> Confidences:
    """Fixed where every image has one view and they fit into memory: the module then runs once an image."""
    values = len(source.centre) * module.classify.out_features
    if source.views == 1 and values <= _FIXED_VALUES:
        return FixedConfidences(compute_confidences(module, source.centre))
    return ViewConfidences(module)


@torch.inference_mode()
def compute_confidences(module: ConfidenceModule, features: Tensor) -> Tensor:
    """(N, F) features to (N, C) confidences, in blocks."""
    return torch.cat([module(part) for part in features.split(4096)])


def rows_to_trust(own_confidences: Tensor, *, min_confidence: float) -> Tensor:
    """Row numbers of the samples whose own label has at least this confidence, sorted int64.

    The "without noise" variants of Smooth Proxy-Anchor's Table 1, where lambda_c is 0.1.

    Args:
        own_confidences: (N,) confidence of every sample in its own label.
    """
    return torch.nonzero(own_confidences >= min_confidence)[:, 0]
