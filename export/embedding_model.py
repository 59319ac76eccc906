"""The model that is exported: normalisation, backbone and head in one."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import Backbone
from training.backbone.pixel_model import PixelModel


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
