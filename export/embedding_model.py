"""The model that is exported: normalisation, backbone and head in one."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import Backbone, normalise_images


class PixelModel(nn.Module):
    """What is exported: (N, H, W, 3) uint8 images to float32 unit rows, (N, D) or several of them.

    Args:
        parts: what takes the normalised (N, 3, H, W) images.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, parts: nn.Module, preprocess: PreprocessConfig) -> None:
        super().__init__()
        self.parts = parts
        self.register_buffer("mean", 255 * torch.tensor(preprocess.mean).view(1, 3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(preprocess.std).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        # In the order that they have: of channels that lie last torch pools with strides, which ONNX writes as a
        # gather by computed positions, and OpenVINO computes these wrongly where a layer is quantised.
        pixels = normalise_images(images, self.mean, self.std).contiguous()
        found: Tensor | tuple[Tensor, ...] = self.parts(pixels)
        return found


class EmbeddingModel(PixelModel):
    """A backbone with its head, maybe two: (N, H, W, 3) uint8 images to (N, D) float32 unit rows, and to (N, P)."""

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module,
        preprocess: PreprocessConfig,
        *,
        picture: nn.Module | None = None,
    ) -> None:
        last = head if picture is None else _TwoHeads(head, picture)
        super().__init__(nn.Sequential(OrderedDict(backbone=backbone.module, head=last)), preprocess)


class _TwoHeads(nn.Module):
    def __init__(self, kind: nn.Module, picture: nn.Module) -> None:
        super().__init__()
        self.kind, self.picture = kind, picture

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.kind(features), self.picture(features)
