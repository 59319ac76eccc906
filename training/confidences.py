"""The confidences of phase 1 as phase 2 reads them: of the view in a step, or one fixed row an image."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

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
