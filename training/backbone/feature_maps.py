"""Feature maps of a convolutional network, found by a dry run instead of architecture names."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from index.errors import InputError

_ACTIVATIONS = ("elu", "silu", "swish", "mish")  # in the class names of ReLU, GELU, SiLU, Hardswish, …
# What these give is no new map, but one made small, though it may have many pixels.
_POOLING = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool2d, nn.MaxPool2d)


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """One map of a network: the output of a module.

    Attributes:
        module: its dotted name.
        call: index of the module's call in one pass, as several layers may share an activation.
        side: size in pixels, more than one.
        channels_last: the output is (N, side, side, C), not (N, C, side, side).
    """

    module: str
    call: int
    channels: int
    side: int
    channels_last: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    map: FeatureMap
    storage: int  # maps of one storage are one map: changed in place, or seen through a container
    is_activated: bool
    is_depthwise: bool  # of channels that are convolved one by one, which says little that they did not say before


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
    others = [m for m in maps if m.map.side == last.map.side and m.storage != last.storage]
    larger = [m.map.side for m in maps if m.map.side > last.map.side]
    before = [m for m in maps if larger and m.map.side == min(larger)]
    chosen = {"gem": last.map, "wide": _widest(others), "earlier": _widest(before)}
    return own_dim, {name: found for name, found in chosen.items() if found is not None}


def _widest(maps: list[_Seen]) -> FeatureMap | None:
    for preferred in (
        [m for m in maps if m.is_activated and not m.is_depthwise],
        [m for m in maps if not m.is_depthwise],
        maps,
    ):
        if preferred:
            widest = max(seen.map.channels for seen in preferred)
            return [seen.map for seen in preferred if seen.map.channels == widest][-1]
    return None


@torch.no_grad()
def _dry_run(network: nn.Module, *, side: int) -> tuple[list[_Seen], int]:
    """All maps in the order of computation, none after they become tokens; and the width of the result."""
    recorder = _Recorder()
    weights = {
        name: tensor.to("meta")
        for tensors in (network.named_parameters(), network.named_buffers())
        for name, tensor in tensors
    }
    named = {module: name for name, module in network.named_modules() if name}
    with hooked(named, lambda module, _, output: recorder.note(named[module], module, output)):
        result = torch.func.functional_call(network, weights, (torch.zeros(1, 3, side, side, device="meta"),))
    return [] if recorder.ends_in_tokens else recorder.maps, int(result.flatten(1).shape[1])


class _Recorder:
    """Notes every map as modules end; keeps all outputs (free on the meta device), so that no two share an id."""

    def __init__(self) -> None:
        self.maps: list[_Seen] = []
        self.ends_in_tokens = False
        self._calls: Counter[str] = Counter()
        self._outputs: list[Tensor] = []
        self._activated: Tensor | None = None
        self._is_depthwise = False

    def note(self, name: str, module: nn.Module, output: Any) -> None:
        call = self._calls[name]
        self._calls[name] += 1
        if not isinstance(output, Tensor):
            return
        self._outputs.append(output)
        if isinstance(module, nn.Conv2d):
            self._is_depthwise = 1 < module.groups == module.in_channels == module.out_channels
        elif isinstance(module, nn.Linear):  # as ConvNeXt has for convolutions of one pixel
            self._is_depthwise = False
        if _is_activation(module):
            self._activated = output
        if output.ndim == 3:
            self.ends_in_tokens = True
        elif not isinstance(module, _POOLING) and (found := _as_map(name, call, output.shape)):
            self.ends_in_tokens = False
            self.maps.append(
                _Seen(found, output.untyped_storage()._cdata, output is self._activated, self._is_depthwise)
            )


def _is_activation(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return next(module.children(), None) is None and any(part in name for part in _ACTIVATIONS)


def _as_map(name: str, call: int, shape: torch.Size) -> FeatureMap | None:
    """The output as a map; maps of square images are square, which tells channels from pixels."""
    if len(shape) != 4:
        return None
    images, first, second, third = shape
    if images != 1:  # but windows of one, or its patches
        return None
    if second == third > 1:
        return FeatureMap(name, call, channels=first, side=second, channels_last=False)
    if first == second > 1:
        return FeatureMap(name, call, channels=third, side=first, channels_last=True)
    return None


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
