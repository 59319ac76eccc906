"""What the network stage trains: the backbone from its first unfrozen block on, and the head on top of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.backbone.backbones import Backbone, arrange_images
from training.head.embedding_heads import AffineHead, ProjectionHead
from training.network.blocks import Block
from training.network.convolutions import Convolutions
from training.network.kept_inputs import Tail


class TrainableProjection(AffineHead):
    """A `ProjectionHead` whose weights train."""

    def __init__(self, head: ProjectionHead) -> None:
        super().__init__()
        self.weight = nn.Parameter(head.weight.clone())
        self.bias = nn.Parameter(head.bias.clone())

    def freeze(self) -> ProjectionHead:
        """The same map as runs and exports keep it."""
        return ProjectionHead(self.weight.detach().clone(), self.bias.detach().clone())


class NetworkModel(nn.Module):
    """(B, H, W, 3) uint8 images to (B, D) float32 unit rows, through a backbone of which some blocks train.

    It also takes (B, …) float16 as `tail` keeps it, where that is set, and runs no more than the tail.

    Batch norm and dropout stay as in evaluation, unless the statistics of batch norm are to follow the batches.

    Args:
        backbone: its module stays the same object, so that what else holds it sees the weights that train.
        blocks: that train, first to last.
        whole: parameters that belong to no block train too, as position embeddings do.
        mean, std: (1, 3, 1, 1), of images of 0..255.
        precision: of the backbone's pass; the head is float32.
        follows_batches: whether the batch norm of the blocks goes by the batches.
        convolutions: of the backbone, that have a quicker way.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: ProjectionHead,
        blocks: Sequence[Block],
        *,
        whole: bool,
        mean: Tensor,
        std: Tensor,
        precision: torch.dtype = torch.float32,
        follows_batches: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone.module.eval().requires_grad_(False)
        self.head = TrainableProjection(head)
        self.precision = precision
        self.tail: Tail | None = None
        self._mean, self._std = mean, std
        self.convolutions = convolutions or Convolutions()
        network = backbone.network
        trained = [block.parameters(network) for block in blocks]
        if whole:
            known = {id(p) for parameters in trained for p in parameters}
            loose = [p for p in network.parameters() if id(p) not in known]
            trained = [loose, *trained] if loose else trained
        self.levels: list[list[nn.Parameter]] = [p for p in trained if p]
        """Parameters by block, first to last, those of no block before them."""
        for parameters in self.levels:
            for parameter in parameters:
                parameter.requires_grad_(True)
        modules = [m for block in blocks for m in block.modules(network)] if follows_batches else []
        self._following = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def forward(self, inputs: Tensor) -> Tensor:
        is_kept = inputs.dtype == torch.float16
        is_half = self.precision != torch.float32
        with (
            torch.autocast(inputs.device.type, dtype=self.precision, enabled=is_half),
            self.convolutions.standing_in(),
        ):
            if is_kept:
                assert self.tail is not None
                features = self.tail.run_kept(inputs)
            else:
                features = self.backbone(arrange_images(inputs, self._mean, self._std))
        return self.head(features.flatten(1).to(torch.promote_types(features.dtype, torch.float32)))

    def learn(self, learning: bool) -> None:
        """Let batch norm follow the batches, where it shall, or nothing."""
        for module in self._following:
            module.train(learning)

    def moving(self) -> dict[str, Tensor]:
        """What training moves, by name: parameters, and the statistics that follow batches. Not copies."""
        found = {name: p.data for name, p in self.named_parameters() if p.requires_grad}
        following = {id(tensor) for module in self._following for tensor in module.buffers()}
        return found | {name: tensor for name, tensor in self.named_buffers() if id(tensor) in following}

    def release(self) -> None:
        """Nothing trains any more."""
        self.learn(False)
        self.requires_grad_(False)
