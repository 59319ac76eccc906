"""What every loss is to the trainer: a module over a batch that may have parameters of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.loss_config import LossConfig
from training.losses.anchor import initial_proxies


@dataclass(frozen=True, slots=True)
class Batch:
    """What is known of the B samples of a step beside their embeddings.

    Attributes:
        labels: (B,) int64 labels used in training, in 0..C-1.
        rows: (B,) int64 positions among the N training images.
        confidences: (B, C) in 0..1 of the trained confidence module; None for methods that do without.
    """

    labels: Tensor
    rows: Tensor
    confidences: Tensor | None = None


class MetricLoss(nn.Module):
    """A loss over a batch of embeddings; proxies are parameters, running statistics are buffers."""

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings of any norm, float32 (float64 for float64 input)."""
        raise NotImplementedError

    def parameter_groups(self, *, proxy_lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW's groups for the loss's own parameters: one at the rate of proxies, where it has any."""
        own = list(self.parameters())
        return [{"params": own, "lr": proxy_lr, "weight_decay": weight_decay}] if own else []


class ProxyLoss(MetricLoss):
    """A loss with proxies (C, D) of its own, one a training class.

    Args:
        config: its hyper-parameters.
        class_count, embedding_dim: C and D.
        generator: of the initial proxies.
    """

    def __init__(
        self, config: LossConfig, *, class_count: int, embedding_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.proxies = initial_proxies(class_count, embedding_dim, generator=generator)
