"""The confidence module of the Smooth Proxy-Anchor paper, which phase 1 trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class ConfidenceModule(nn.Module):
    """Linear(F, hidden), ReLU, Linear(hidden, C), sigmoid: how far a sample belongs to each training class."""

    def __init__(self, feature_dim: int, *, hidden: int, class_count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.reduce = nn.Linear(feature_dim, hidden)
        self.classify = nn.Linear(hidden, class_count)
        nn.init.kaiming_normal_(self.reduce.weight, nonlinearity="relu", generator=generator)
        nn.init.xavier_uniform_(self.classify.weight, generator=generator)
        nn.init.zeros_(self.reduce.bias)
        nn.init.zeros_(self.classify.bias)

    def logits(self, features: Tensor) -> Tensor:
        """(B, F) features to (B, C) logits."""
        return self.classify(nn.functional.relu(self.reduce(features)))

    def columns(self, features: Tensor) -> ModuleColumns:
        """The same confidences of (B, F) features, made as they are read: (B, C) is never held."""
        hidden = nn.functional.relu(self.reduce(features))
        return ModuleColumns(hidden, self.classify.weight, self.classify.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) features to (B, C) confidences in 0..1."""
        return torch.sigmoid(self.logits(features))


@dataclass(frozen=True, slots=True)
class ModuleColumns:
    """(B, C) confidences as the factors that they are made of.

    Attributes:
        hidden: (B, hidden) after the ReLU.
        weight, bias: (C, hidden) and (C,) of the classifier.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def columns(self, start: int, stop: int) -> Tensor:
        """(B, stop - start) in 0..1, of the classes start..stop-1."""
        return nn.functional.linear(self.hidden, self.weight[start:stop], self.bias[start:stop]).sigmoid_()
