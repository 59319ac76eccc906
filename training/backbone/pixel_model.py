"""What a graph is written of: normalisation, and whatever takes the normalised images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import normalise_images


class PixelModel(nn.Module):
    """What is written as ONNX: (N, H, W, 3) uint8 images to float32 rows, (N, D) or several of them.

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
