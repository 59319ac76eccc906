"""The model that is exported: normalisation, backbone and head in one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import Backbone
from training.backbone.pixel_model import PixelModel


class EmbeddingModel(PixelModel):
    """A backbone with its heads: (N, H, W, 3) uint8 images to float32 unit rows of each, (N, D) of a single one."""

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module,
        preprocess: PreprocessConfig,
        *,
        others: Sequence[nn.Module] = (),
    ) -> None:
        last = _Heads([head, *others]) if others else head
        super().__init__(nn.Sequential(OrderedDict(backbone=backbone.module, head=last)), preprocess)


class _Heads(nn.ModuleList):
    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        return tuple(head(features) for head in self)
