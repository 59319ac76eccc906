"""Trainable model of fine-tuning: the backbone from its first trainable block on, and the head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from index.errors import InputError
from training.backbone.backbones import Backbone, arrange_images
from training.backbone.convolutions import Convolution, standing_in
from training.head.embedding_heads import ProjectionHead

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DEEP = 2  # levels of modules below one that is a block by itself, as a residual block or a transformer's layer


@dataclass(frozen=True, slots=True)
class Block:
    """Modules that train together, by dotted names: one, or a layer with its normalisation."""

    names: tuple[str, ...]

    def parameters(self, network: nn.Module) -> list[nn.Parameter]:
        """All of them, each once."""
        return [p for name in self.names for p in network.get_submodule(name).parameters()]


def find_blocks(backbone: Backbone, *, side: int) -> list[Block]:
    """Blocks with parameters, first to last.

    Lists of modules are opened, and so is a module with a list of several blocks of one kind (an encoder, a stage). Any
    other module with modules in it is a block (a bottleneck, an inverted residual, a transformer layer); so is a single
    layer, with the normalisation right after it. `side` is the image size of `backbone.module` in pixels.
    """
    network = backbone.network
    blocks: list[Block] = []
    for name in find_units(backbone, side=side):
        parts = network.get_submodule(name).modules()
        learning = [part for part in parts if next(part.parameters(recurse=False), None) is not None]
        if blocks and learning and all("norm" in type(part).__name__.lower() for part in learning):
            blocks[-1] = Block((*blocks[-1].names, name))
        elif learning:
            blocks.append(Block((name,)))
    return blocks


@torch.no_grad()
def find_units(backbone: Backbone, *, side: int) -> list[str]:
    """Dotted names of the parts of blocks and of modules between them, by first use; `side` as in `find_blocks`.

    Those that a pass over one image does not run are left out.
    """
    network, seen = backbone.network, dict[str, None]()
    hooks = [
        network.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: seen.setdefault(name))
        for name in _open(network, "")
    ]
    parameter = next(network.parameters())
    try:
        backbone.module(torch.zeros(1, 3, side, side, device=parameter.device))
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen)


def choose_blocks(blocks: Sequence[Block], *, last: int | None, name: str) -> list[Block]:
    """The last blocks; all where `last` is None."""
    if last is None:
        return list(blocks)
    if last > len(blocks):
        raise InputError(
            f"--finetune last-{last}: --backbone {name} has {len(blocks)} blocks; choose fewer, or --finetune all"
        )
    return list(blocks[-last:])


def _open(module: nn.Module, prefix: str) -> Iterator[str]:
    """Dotted names of the units in an opened module."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        is_list = type(child) in _LISTS or (isinstance(child, _LISTS) and _repeats(child))
        if is_list or any(isinstance(part, _LISTS) and _repeats(part) for part in child.children()):
            yield from _open(child, f"{path}.")
        else:
            yield path


def _repeats(container: nn.Module) -> bool:
    """Whether a module holds several blocks of one kind, also in nested lists."""
    kinds = [type(child) for child in container.children() if _depth(child) >= _DEEP]
    lists = [child for child in container.children() if isinstance(child, _LISTS)]
    return len(kinds) > len(set(kinds)) or any(_repeats(child) for child in lists)


def _depth(module: nn.Module) -> int:
    return max((1 + _depth(child) for child in module.children()), default=0)


class NetworkModel(nn.Module):
    """(B, H, W, 3) uint8 images to (B, D) float32 unit rows, through a backbone of which some blocks train.

    Batch norm and dropout stay as in evaluation.

    The backbone's module stays the same object, so that others see the trained weights. With `whole`, parameters of no
    block train too, such as position embeddings. `precision` is the backbone's; the head is float32.
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
        convolutions: Sequence[Convolution] = (),
    ) -> None:
        super().__init__()
        self.backbone = backbone.module.eval().requires_grad_(False)
        self.head = ProjectionHead(head.weight, head.bias, trains=True)
        self.precision = precision
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

    def forward(self, inputs: Tensor) -> Tensor:
        is_half = self.precision != torch.float32
        with torch.autocast(inputs.device.type, dtype=self.precision, enabled=is_half), standing_in(self.convolutions):
            features = self.backbone(arrange_images(inputs, self._mean, self._std))
        return self.head(features.flatten(1).to(torch.promote_types(features.dtype, torch.float32)))

    def moving(self) -> dict[str, Tensor]:
        """Tensors that training changes, by name; no copies."""
        return {name: p.data for name, p in self.named_parameters() if p.requires_grad}
