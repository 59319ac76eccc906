"""The blocks of a network in the order in which it runs them: found by its structure, not by names of architectures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from index.errors import InputError
from training.backbone.backbones import Backbone

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
            f"--unfreeze last-{last}: --backbone {name} has {len(blocks)} blocks; choose fewer, or --unfreeze all"
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
