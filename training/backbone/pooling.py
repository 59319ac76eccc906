"""Pooling of feature maps into features: the network's own, generalised mean, or several layers of one forward pass.

own     what the network gives without its last layer
gem     generalised mean of the last map, (mean x^p)^(1/p) a channel (Radenović et al., "Fine-tuning CNN Image
        Retrieval with No Human Annotation")
layers  [gem, 0.5 mean(wide), 0.35 mean(earlier)], each at unit length before its weight; the maps are those of
        `choose_maps`
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from training.backbone.feature_maps import FeatureMap, choose_maps, reading_maps


class BothViews(nn.Module):
    """(N, 3, H, H) images to (N, F) float32: the mean of the unit features of both views.

    Images no larger than `side`, as in training, are one view each.
    """

    def __init__(self, features: nn.Module, *, side: int) -> None:
        super().__init__()
        self.features = features
        self._side = side

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] <= self._side:
            return average_views([self.features(images).flatten(1).float()])
        margin = (images.shape[-1] - self._side) // 2
        inside = slice(margin, margin + self._side)
        size = (self._side, self._side)
        whole = nn.functional.interpolate(images, size=size, mode="bilinear", align_corners=False)
        views = torch.cat([images[:, :, inside, inside], whole])  # (2N, 3, side, side)
        features = self.features(views).flatten(1).float()
        return average_views(features.unflatten(0, (2, -1)).unbind())


def average_views(views: Sequence[Tensor]) -> Tensor:
    """Mean of (N, F) features of several views, each normalised first."""
    return torch.stack([nn.functional.normalize(view) for view in views]).mean(dim=0)


GEM_POWER, GEM_FLOOR = 3, 1e-6
LAYER_WEIGHTS: Mapping[str, float] = {"gem": 1.0, "wide": 0.5, "earlier": 0.35}
POOLING_VERSION = 1  # raise it when the pieces or their maps change: cached features are then stale


class PooledFeatures(nn.Module):
    """Network with another pooling of its feature maps than its own: (N, 3, H, W) to (N, F) float32.

    Args:
        pooling: `gem` or `layers`.
        side: image size in pixels by which the maps are chosen; `InputError` without any.
    """

    def __init__(self, network: nn.Module, pooling: str, *, side: int) -> None:
        super().__init__()
        self.network, self._pooling = network, pooling
        _, maps = choose_maps(network, side=side)
        self._maps = maps if pooling == "layers" else {pooling: maps[pooling]}
        self.feature_dim = sum(found.channels for found in self._maps.values())

    def forward(self, images: Tensor) -> Tensor:
        parts: dict[str, Tensor] = {}

        def pool(read: FeatureMap, output: Tensor) -> None:
            for name, wanted in self._maps.items():
                if wanted == read:
                    parts[name] = _gem(output, read) if name == "gem" else _average(output, read)

        with reading_maps(self.network, tuple(self._maps.values()), pool):
            parts["own"] = self.network(images).flatten(1).float()
        if self._pooling != "layers":
            return parts[self._pooling]
        return torch.cat([LAYER_WEIGHTS[name] * nn.functional.normalize(parts[name]) for name in self._maps], dim=1)


def _gem(output: Tensor, of: FeatureMap) -> Tensor:
    """(N, C) float32: the generalised mean over all pixels."""
    powers = output.float().clamp(min=GEM_FLOOR).pow(GEM_POWER)
    return _average(powers, of).pow(1 / GEM_POWER)


def _average(output: Tensor, of: FeatureMap) -> Tensor:
    """(N, C) float32."""
    return output.float().mean(dim=(1, 2) if of.channels_last else (2, 3))
