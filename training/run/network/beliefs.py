"""Whom the network stage believes: at first by the features that it begins with, later by its own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from index.arrays import Ids
from training.backbone.feature_sources import CachedSource
from training.confidence.confidences import Beliefs, believe_others, fit_in_memory
from training.confidence.top_confidences import TopConfidences
from training.losses.interface import Batch
from training.options.losses import LossConfig
from training.run.moments import sum_moments_together
from training.run.network.data import NetworkData


@dataclass(frozen=True, slots=True)
class NetworkBeliefs:
    """What losses read of the N images: (N,) weights and (N, C) confidences, the largest alone where these would not
    fit into memory; None where they do not.
    """

    weights: Tensor | None = None
    confidences: Tensor | TopConfidences | None = None

    def batch(self, rows: Tensor, labels: Tensor) -> Batch:
        """What a loss is told of the images `rows` (B,) with (B,) labels, on the labels' device."""
        device = labels.device
        return Batch(
            labels,
            rows.to(device),
            None if self.confidences is None else _take(self.confidences, rows).to(device),
            None if self.weights is None else self.weights[rows].to(device),
        )

    def pack(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        found = {"weights": self.weights}
        if isinstance(self.confidences, TopConfidences):
            found |= {f"top.{name}": getattr(self.confidences, name) for name in TopConfidences.__slots__}
        else:
            found["confidences"] = self.confidences
        return {f"beliefs.{name}": value for name, value in found.items() if value is not None}

    @classmethod
    def unpack(cls, tensors: dict[str, Tensor]) -> NetworkBeliefs:
        """What `pack` gave."""
        top = [tensors.get(f"beliefs.top.{name}") for name in TopConfidences.__slots__]
        kept = [part for part in top if part is not None]
        confidences = TopConfidences(*kept) if kept else tensors.get("beliefs.confidences")
        return cls(tensors.get("beliefs.weights"), confidences)

    @classmethod
    def of(cls, beliefs: Beliefs, loss: LossConfig) -> NetworkBeliefs:
        """As phase 1 has them, of all images."""
        weights = beliefs.weights.cpu() if loss.weighs_samples else None
        if not loss.needs_confidences:
            return cls(weights)
        blocks = (found.cpu() for _, found in beliefs.confidences.blocks())
        first = next(blocks)
        whole = chain([first], blocks)
        fits = fit_in_memory(len(beliefs.own), first.shape[1])
        return cls(weights, torch.cat(list(whole)) if fits else TopConfidences.of(whole))


def _take(confidences: Tensor | TopConfidences, rows: Tensor) -> Tensor | TopConfidences:
    return confidences[rows] if isinstance(confidences, Tensor) else confidences.take(rows)


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
    weights, confidences = None, None
    if found.weights is not None:
        weights = torch.zeros(len(data.labels))
        weights[train] = found.weights
    if found.confidences is not None:
        confidences = _place(found.confidences, data, classes)
    return NetworkBeliefs(weights, confidences)


def _place(found: Tensor | TopConfidences, data: NetworkData, classes: Ids) -> Tensor | TopConfidences:
    """Those of the images that train in the classes that do, as of all images in all classes."""
    train, count = data.split.train, len(data.labels)
    if isinstance(found, Tensor) and fit_in_memory(count, data.class_count):
        confidences = torch.zeros(count, data.class_count)
        confidences[np.ix_(train, classes)] = found
        return confidences
    top = TopConfidences.of([found]) if isinstance(found, Tensor) else found
    return top.place(torch.from_numpy(train), torch.from_numpy(classes), count=count)
