"""The second output on top of a backbone: which picture an image is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

HIDDEN = 512  # units


class PictureHead(nn.Module):
    """(..., F) features to (..., D) unit rows: standardised, one hidden layer.

    Args:
        generator: of the first weights.
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self, feature_dim: int, *, picture_dim: int, hidden: int = HIDDEN, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(feature_dim))
        self.register_buffer("scale", torch.ones(feature_dim))
        self.hidden, self.last = nn.Linear(feature_dim, hidden), nn.Linear(hidden, picture_dim)
        for layer in (self.hidden, self.last):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)

    @property
    def picture_dim(self) -> int:
        """D."""
        return self.last.out_features

    @torch.no_grad()
    def standardise(self, features: Tensor) -> None:
        """Let every one of (N, F) features have mean 0 and deviation 1; one that never differs becomes 0."""
        deviation = features.std(dim=0)
        self.centre.copy_(features.mean(dim=0))
        self.scale.copy_(torch.where(deviation > 0, 1 / deviation, 0))

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.hidden((features - self.centre) * self.scale).relu()
        return nn.functional.normalize(self.last(hidden), dim=-1)
