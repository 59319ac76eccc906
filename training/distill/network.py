"""A small network with two outputs: of what kind a picture is, and which picture it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.backbone.backbones import Backbone


class TwoOutputs(nn.Module):
    """(N, 3, H, W) normalised images to (N, kind_dim) and (N, picture_dim) float32 unit rows, from one trunk.

    Args:
        trunk: a backbone; all of it trains.
        kind_dim, picture_dim: widths of the outputs.
        seed: of the two last layers.
    """

    def __init__(self, trunk: Backbone, *, kind_dim: int, picture_dim: int, seed: int) -> None:
        super().__init__()
        self.trunk = trunk.module.requires_grad_(True)
        for layer in self.trunk.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0  # so few images and epochs are learnt too little rather than too well
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.kind = nn.Linear(trunk.feature_dim, kind_dim)
            self.picture = nn.Linear(trunk.feature_dim, picture_dim)

    @torch.no_grad()
    def start_kind(self, weight: Tensor, bias: Tensor, *, lengths: float) -> None:
        """Let `kind` be the unit rows of weight · f / |f| + bias, for features of about the given length."""
        self.kind.weight.copy_(weight)
        self.kind.bias.copy_(bias * lengths)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(images).flatten(1).float()
        return tuple(nn.functional.normalize(layer(features)) for layer in (self.kind, self.picture))  # type: ignore[return-value]
