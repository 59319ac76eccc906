"""Whom the network stage believes: at first by the features that it begins with, later by its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.backbone.feature_sources import CachedSource
from training.confidence.confidences import Beliefs, believe_others
from training.losses.interface import Batch
from training.options.losses import LossConfig
from training.run.moments import sum_moments_together
from training.run.network.data import NetworkData


@dataclass(frozen=True, slots=True)
class NetworkBeliefs:
    """What losses read of the N images: (N,) weights and (N, C) confidences; None where they do not."""

    weights: Tensor | None = None
    confidences: Tensor | None = None

    def batch(self, rows: Tensor, labels: Tensor) -> Batch:
        """What a loss is told of the images `rows` (B,) with (B,) labels, on the labels' device."""
        device = labels.device
        return Batch(
            labels,
            rows.to(device),
            None if self.confidences is None else self.confidences[rows].to(device),
            None if self.weights is None else self.weights[rows].to(device),
        )

    def pack(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {f"beliefs.{name}": value for name in self.__slots__ if (value := getattr(self, name)) is not None}

    @classmethod
    def unpack(cls, tensors: dict[str, Tensor]) -> NetworkBeliefs:
        """What `pack` gave."""
        return cls(tensors.get("beliefs.weights"), tensors.get("beliefs.confidences"))

    @classmethod
    def of(cls, beliefs: Beliefs, loss: LossConfig) -> NetworkBeliefs:
        """As phase 1 has them, of all images."""
        weights = beliefs.weights.cpu() if loss.weighs_samples else None
        blocks = beliefs.confidences.blocks() if loss.needs_confidences else ()
        confidences = [found.cpu() for _, found in blocks]
        return cls(weights, torch.cat(confidences) if confidences else None)


def judge_again(features: Tensor, data: NetworkData, loss: LossConfig) -> NetworkBeliefs:
    """By leave-one-out among the images that train, which alone are judged: the others' labels play no part.

    Args:
        features: (n, F) float32 of the images that train, in their order.
    """
    train = data.split.train
    groups = None if data.groups is None else torch.from_numpy(data.groups[train])
    classes, numbers = np.unique(data.labels[train], return_inverse=True)
    judged = believe_others(
        CachedSource(features[:, None]), torch.from_numpy(numbers), class_count=len(classes), groups=groups,
        moments=sum_moments_together,
    )  # fmt: skip
    found = NetworkBeliefs.of(judged, loss)
    weights = confidences = None
    if found.weights is not None:
        weights = torch.zeros(len(data.labels))
        weights[train] = found.weights
    if found.confidences is not None:
        confidences = torch.zeros(len(data.labels), data.class_count)
        confidences[np.ix_(train, classes)] = found.confidences
    return NetworkBeliefs(weights, confidences)
