"""Embedding heads on backbone features."""

import math

import torch
from torch import Tensor, nn


class EmbeddingHead(nn.Module):
    """One linear layer and L2 normalisation: (B, F) features to (B, D) unit rows."""

    def __init__(self, feature_dim: int, *, embedding_dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(feature_dim, embedding_dim)
        nn.init.kaiming_normal_(self.linear.weight, mode="fan_out", generator=generator)
        nn.init.zeros_(self.linear.bias)

    @property
    def embedding_dim(self) -> int:
        return self.linear.out_features

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(self.linear(features))


class ProjectionHead(nn.Module):
    """L2 normalisation, an affine map, L2 normalisation: (B, F) features to (B, D) unit rows.

    The map is a float32 `weight` (D, F) and `bias` (D,), such as those of PCA; they are fixed unless it `trains`.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, *, trains: bool = False) -> None:
        super().__init__()
        for name, tensor in (("weight", weight), ("bias", bias)):
            if trains:
                self.register_parameter(name, nn.Parameter(tensor.clone()))
            else:
                self.register_buffer(name, tensor)

    @property
    def embedding_dim(self) -> int:
        return len(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        projected = nn.functional.linear(nn.functional.normalize(features), self.weight, self.bias)
        return nn.functional.normalize(projected)


class WhitenedHead(nn.Module):
    """Head in training, initialised as the first D of K fixed directions: (B, F) features to (B, D) unit rows.

    The features are L2-normalised and projected onto all K, by (K, F) float32 `weight` and (K,) `bias`; `mix` (D, K) is
    trained.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, *, embedding_dim: int) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.mix = nn.Parameter(torch.eye(embedding_dim, len(weight)))

    @property
    def embedding_dim(self) -> int:
        return len(self.mix)

    def forward(self, features: Tensor) -> Tensor:
        return self.mix_directions(self.project(features))

    def project(self, features: Tensor) -> Tensor:
        """(B, F) features to their fixed (B, K) coordinates."""
        return nn.functional.linear(nn.functional.normalize(features), self.weight, self.bias)

    def mix_directions(self, coordinates: Tensor) -> Tensor:
        """(B, K) coordinates to (B, D) unit rows."""
        return nn.functional.normalize(coordinates @ self.mix.T)

    def drift(self) -> Tensor:
        """() squared distance of `mix` from its initial value, over sqrt(D): wide heads move more rows for the same."""
        moved = self.mix - torch.eye(*self.mix.shape, device=self.mix.device)
        return moved.square().sum() / math.sqrt(len(self.mix))

    def fold(self) -> ProjectionHead:
        """Equal projection with one weight matrix."""
        mix = self.mix.detach()
        return ProjectionHead(mix @ self.weight, mix @ self.bias)


class RawHead(nn.Module):
    """L2 normalisation only."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.embedding_dim = feature_dim

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(features)


Head = EmbeddingHead | ProjectionHead | RawHead
