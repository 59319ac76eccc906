"""Feature maps of a convolutional network, found by a dry run instead of architecture names."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from index.errors import InputError

_ACTIVATIONS = ("elu", "silu", "swish", "mish")  # in the class names of ReLU, GELU, SiLU, Hardswish, …
# Pooling layers: their outputs are not counted as feature maps.
_POOLING = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool2d, nn.MaxPool2d)


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """One map of a network: the output of a module.

    Attributes:
        module: its dotted name.
        call: index of the module's call in one pass, as several layers may share an activation.
        side: size in pixels, more than one.
        channels_last: the output is (N, side, side, C), not (N, C, side, side).
        storage: maps of one storage are one map: changed in place, or seen through a container.
        rank: how much the map says: 2 after an activation, 1 before one, 0 of channels that are convolved one by one.
    """

    module: str
    call: int
    channels: int
    side: int
    channels_last: bool
    storage: int = field(default=0, compare=False)
    rank: int = field(default=0, compare=False)


def choose_maps(network: nn.Module, *, side: int) -> tuple[int, dict[str, FeatureMap]]:
    """Width of the network's result at this image size, and the maps that poolings read.

    gem     the map before the network's own pooling
    wide    the widest other one of the same side, as the expansion in the last block
    earlier the widest one of the side before, the last such one

    Missing ones are left out; maps after an activation are preferred. The choice depends on the architecture alone: the
    dry run computes only shapes.
    """
    maps, own_dim = _dry_run(network, side=side)
    if not maps:
        raise InputError("it makes no feature maps, or turns them into tokens")
    last = maps[-1]
    larger = min((one.side for one in maps if one.side > last.side), default=0)
    chosen = {"gem": last}
    for name, found in (
        ("wide", [one for one in maps if one.side == last.side and one.storage != last.storage]),
        ("earlier", [one for one in maps if one.side == larger]),
    ):
        if found:
            chosen[name] = max(reversed(found), key=lambda one: (one.rank, one.channels))
    return own_dim, chosen


@torch.no_grad()
def _dry_run(network: nn.Module, *, side: int) -> tuple[list[FeatureMap], int]:
    """All maps in the order of computation, none where they end as tokens; and the width of the result."""
    maps: list[FeatureMap] = []
    outputs: list[Tensor] = []  # kept, which is free on the meta device, so that no two share an id
    calls: Counter[str] = Counter()
    activated: Tensor | None = None
    is_depthwise = ends_in_tokens = False

    def note(module: nn.Module, _: Any, output: Any) -> None:
        nonlocal activated, is_depthwise, ends_in_tokens
        name = named[module]
        call, kind = calls[name], type(module).__name__.lower()
        calls[name] += 1
        if not isinstance(output, Tensor):
            return
        outputs.append(output)
        if isinstance(module, nn.Conv2d):
            is_depthwise = 1 < module.groups == module.in_channels == module.out_channels
        elif isinstance(module, nn.Linear):  # as ConvNeXt has for convolutions of one pixel
            is_depthwise = False
        if next(module.children(), None) is None and any(part in kind for part in _ACTIVATIONS):
            activated = output
        if output.ndim == 3:
            ends_in_tokens = True
        elif not isinstance(module, _POOLING) and (size := _measure(output.shape)) is not None:
            ends_in_tokens, rank = False, 0 if is_depthwise else 2 if output is activated else 1
            maps.append(FeatureMap(name, call, *size, output.untyped_storage()._cdata, rank))

    tensors = chain(network.named_parameters(), network.named_buffers())
    weights = {name: tensor.to("meta") for name, tensor in tensors}
    named = {module: name for name, module in network.named_modules() if name}
    with hooked(named, note):
        result = torch.func.functional_call(network, weights, (torch.zeros(1, 3, side, side, device="meta"),))
    return [] if ends_in_tokens else maps, int(result.flatten(1).shape[1])


def _measure(shape: torch.Size) -> tuple[int, int, bool] | None:
    """Channels and side of a map, and whether channels lie last; maps of square images are square."""
    if len(shape) != 4 or shape[0] != 1:  # more than one are windows of one image, or its patches
        return None
    _, first, second, third = shape
    if second == third > 1:
        return first, second, False
    return (third, first, True) if first == second > 1 else None


@contextmanager
def reading_maps(
    network: nn.Module, maps: Sequence[FeatureMap], read: Callable[[FeatureMap, Tensor], None]
) -> Iterator[None]:
    """Call `read(map, output)` when the network makes a map, before anything changes it in place."""
    calls: Counter[str] = Counter()
    named = {network.get_submodule(wanted.module): wanted.module for wanted in maps}

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        name = named[module]
        for wanted in maps:
            if (wanted.module, wanted.call) == (name, calls[name]):
                read(wanted, output)
        calls[name] += 1

    with hooked(named, note):
        yield


@contextmanager
def hooked(modules: Iterable[nn.Module], note: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
    """Call `note(module, inputs, output)` when one of the modules ends."""
    hooks = [module.register_forward_hook(note) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
