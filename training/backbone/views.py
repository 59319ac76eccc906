"""Two views of an image in one pass: its centre crop, and the whole of it stretched to the same size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class BothViews(nn.Module):
    """(N, 3, H, H) images to (N, F) float32: the mean of the unit features of both views.

    Images that are no larger than the views are one view each, as a network trains on: they give its unit features.

    Args:
        features: what makes (N, F) features of (N, 3, side, side) images.
        side: of the views.
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
    """The mean of (N, F) features of several views, each row at unit length before."""
    return torch.stack([nn.functional.normalize(view) for view in views]).mean(dim=0)
