"""Trainable model of fine-tuning: the backbone from its first unfrozen block on, and the head on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from index.errors import InputError
from training.backbone.backbones import Backbone, arrange_images
from training.head.embedding_heads import AffineHead, ProjectionHead
from training.network.convolutions import Convolution, standing_in
from training.network.kept_inputs import Tail

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DEEP = 2  # levels of modules below one that is a block by itself, as a residual block or a transformer's layer


@dataclass(frozen=True, slots=True)
class Block:
    """Modules that train or stay as they are together.

    Attributes:
        names: dotted, of the network's modules: one, or a layer and the normalisation behind it.
    """

    names: tuple[str, ...]

    def parameters(self, network: nn.Module) -> list[nn.Parameter]:
        """All of them, each once."""
        return [p for name in self.names for p in network.get_submodule(name).parameters()]

    def modules(self, network: nn.Module) -> Iterator[nn.Module]:
        """All modules in it."""
        return (module for name in self.names for module in network.get_submodule(name).modules())


def find_blocks(backbone: Backbone, *, side: int) -> list[Block]:
    """The blocks with parameters, first to last.

    Lists of modules are opened, and so is what holds a list of several blocks of one kind (an encoder, a stage). What
    else has modules below it is a block (a bottleneck, an inverted residual, a transformer's layer); so is a layer of
    its own, to which the normalisation right behind it belongs.

    Args:
        side: pixels a side of the images that `backbone.module` takes.
    """
    network = backbone.network
    blocks: list[Block] = []
    for name in find_units(backbone, side=side):
        module = network.get_submodule(name)
        if blocks and _only_normalises(module):
            blocks[-1] = Block((*blocks[-1].names, name))
        elif any(True for _ in module.parameters()):
            blocks.append(Block((name,)))
    return blocks


def find_units(backbone: Backbone, *, side: int) -> list[str]:
    """The dotted names of what blocks are made of and of what runs between them, by when it first does.

    Args:
        side: as of `find_blocks`.
    """
    network = backbone.network
    return _in_order(network, list(_open(network, "")), run=backbone.module, side=side)


def choose_blocks(blocks: Sequence[Block], *, last: int | None, name: str) -> list[Block]:
    """The last ones that train; all where `last` is None."""
    if last is None:
        return list(blocks)
    if last > len(blocks):
        raise InputError(
            f"--finetune last-{last}: --backbone {name} has {len(blocks)} blocks; choose fewer, or --finetune all"
        )
    return list(blocks[-last:])


def _open(module: nn.Module, prefix: str) -> Iterator[str]:
    """The dotted names of the units in a module that is opened."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if _is_opened(child):
            yield from _open(child, f"{path}.")
        else:
            yield path


def _is_opened(module: nn.Module) -> bool:
    if type(module) in _LISTS or (isinstance(module, _LISTS) and _repeats(module)):
        return True
    return any(isinstance(child, _LISTS) and _repeats(child) for child in module.children())


def _repeats(container: nn.Module) -> bool:
    """Whether it holds several blocks of one kind, be it in lists of its own."""
    kinds = [type(child) for child in container.children() if _depth(child) >= _DEEP]
    lists = [child for child in container.children() if isinstance(child, _LISTS)]
    return len(kinds) > len(set(kinds)) or any(_repeats(child) for child in lists)


def _depth(module: nn.Module) -> int:
    return max((1 + _depth(child) for child in module.children()), default=0)


def _only_normalises(module: nn.Module) -> bool:
    """Whether all that it learns is normalisation, be there an activation or a pooling with it."""
    learning = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    return bool(learning) and all("norm" in type(m).__name__.lower() for m in learning)


@torch.no_grad()
def _in_order(network: nn.Module, names: list[str], *, run: nn.Module, side: int) -> list[str]:
    """Those that a pass over one image runs, by when it first does."""
    seen: dict[str, None] = {}
    hooks = [
        network.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: seen.setdefault(name))
        for name in names
    ]
    parameter = next(network.parameters())
    try:
        run(torch.zeros(1, 3, side, side, device=parameter.device))
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen)


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
        convolutions: Sequence[Convolution] = (),
    ) -> None:
        super().__init__()
        self.backbone = backbone.module.eval().requires_grad_(False)
        self.head = TrainableProjection(head)
        self.precision = precision
        self.tail: Tail | None = None
        self._mean, self._std = mean, std
        self.convolutions = convolutions
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
            standing_in(self.convolutions),
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
