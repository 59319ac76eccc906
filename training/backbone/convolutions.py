"""Faster convolutions: with their batch norm and activation, and backward passes in float32.

Frozen batch norm is a scale and a shift of every channel, so it belongs into the weights of the convolution before it
(y = conv(x, s w) + b - m s, s = g / sqrt(v + eps)): two passes less over every map, forward and backward, and the same
gradients for w, g and b, except for rounding. In bfloat16 some depthwise convolutions run backward in float32. Where
nothing learns, as in frozen blocks, the activation is part of the convolution too: one more pass less.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.backbone.feature_maps import hooked

CONVOLUTIONS_VERSION = 2  # raise it when features change in their last bits
_CLOSE = 1e-4  # of the largest feature: what rounding in another order may change
_ACTIVATIONS: Mapping[type[nn.Module], tuple[str, list[float]]] = {
    nn.ReLU: ("relu", []),
    nn.ReLU6: ("hardtanh", [0.0, 6.0]),
    nn.SiLU: ("swish", []),
    nn.Hardswish: ("hardswish", []),
}
"""Names and numbers that oneDNN has for them."""
_QUICK_KERNEL = 3  # pixels a side; oneDNN has a bfloat16 backward for depthwise kernels up to it, of stride 1


@dataclass(slots=True, eq=False)
class Convolution:
    """A convolution, the batch norm that takes its output, and the activation that takes the norm's, if they exist."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d | None = None
    activation: nn.Module | None = None
    _folded: Tensor | None = None  # what `run` made with the norm in it and `run_norm` has not seen yet
    _activated: Tensor | None = None  # the same with the activation in it

    def run(self, inputs: Tensor) -> Tensor:
        """Convolution of (B, C, H, W), with its norm where that is frozen, and its activation where nothing learns."""
        weight, bias = self.conv.weight, self.conv.bias
        if self.norm is not None and not self.norm.training:
            weight, bias = fold_norm(weight, bias, self.norm)
        on_cpu = inputs.device.type == "cpu"  # a GPU has kernels of its own
        in_bfloat16 = on_cpu and torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
        kind = torch.bfloat16 if in_bfloat16 else inputs.dtype
        self._activated = None
        if weight is not self.conv.weight and self._can_activate(inputs, weight, bias, kind=kind):
            output = self._activated = self._run_activated(inputs.to(kind), weight.to(kind), bias)
        elif in_bfloat16 and _is_slow_backward(self.conv):
            output = _FullBackward.apply(inputs, weight, bias, self.conv)
        else:
            output = self.conv._conv_forward(inputs, weight, bias)
        self._folded = output if weight is not self.conv.weight else None
        return output

    def _can_activate(self, *values: Tensor | None, kind: torch.dtype) -> bool:
        if self.activation is None:
            return False
        learns = torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in values)
        is_known = kind == torch.float32 or (kind == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return is_known and not learns

    def _run_activated(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """By the operator that `torch.compile` takes on CPUs."""
        assert self.activation is not None
        conv, (name, numbers) = self.conv, _ACTIVATIONS[type(self.activation)]
        bias = None if bias is None else bias.to(inputs.dtype)
        sizes = (conv.padding, conv.stride, conv.dilation, conv.groups)
        found: Tensor = torch.ops.mkldnn._convolution_pointwise(inputs, weight, bias, *sizes, name, numbers, "")
        return found

    def run_norm(self, inputs: Tensor) -> Tensor:
        """The norm, unless `run` has applied it."""
        assert self.norm is not None
        folded, self._folded = self._folded, None
        return inputs if inputs is folded else type(self.norm).forward(self.norm, inputs)

    def run_activation(self, inputs: Tensor) -> Tensor:
        """The activation, unless `run` has applied it."""
        assert self.activation is not None
        activated, self._activated = self._activated, None
        found: Tensor = inputs if inputs is activated else type(self.activation).forward(self.activation, inputs)
        return found


def fold_norm(weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """(O, I, K, K) weights and (O,) bias of a convolution with its batch norm folded in."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps)
    scale = scale if norm.weight is None else norm.weight * scale
    shift = -norm.running_mean * scale if bias is None else (bias - norm.running_mean) * scale
    return weight * scale[:, None, None, None], shift if norm.bias is None else shift + norm.bias


@contextmanager
def standing_in(convolutions: Sequence[Convolution]) -> Iterator[None]:
    """Run these convolutions the faster way while the block runs, in one thread at a time."""
    runs: list[tuple[nn.Module, Any]] = [(each.conv, each.run) for each in convolutions]
    runs += [(each.norm, each.run_norm) for each in convolutions if each.norm is not None]
    runs += [(each.activation, each.run_activation) for each in convolutions if each.activation is not None]
    try:
        for module, run in runs:
            module.__dict__["forward"] = run
        yield
    finally:
        for module, _ in runs:
            module.__dict__.pop("forward", None)


@torch.no_grad()
def find_convolutions(module: nn.Module, *, side: int, in_bfloat16: bool = False) -> Sequence[Convolution]:
    """Convolutions of a network in eval mode with a faster way, found by one pass and checked by others.

    None where the network would give other features, and on a GPU, where nothing of it was measured. `module` maps
    (B, 3, side, side) images to (B, F) features. Activations that are applied in place are not any more if the network
    will run `in_bfloat16`, where that takes three times as long.
    """
    like = next(module.parameters(), None)  # a backbone in an ONNX file has none
    if like is None or like.device.type != "cpu":
        return ()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, side, side, generator=generator).to(
        like.device, like.dtype, memory_format=torch.channels_last
    )
    calls: dict[nn.Module, list[tuple[Any, Any]]] = {}
    noted = [each for each in module.modules() if type(each) in (nn.Conv2d, nn.BatchNorm2d, *_ACTIVATIONS)]
    in_place = [each for each in noted if in_bfloat16 and getattr(each, "inplace", False)]
    has_operator = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    with torch.autocast("cpu", enabled=False):
        with hooked(noted, lambda each, took, gave: calls.setdefault(each, []).append((*took[:1], gave))):
            expected = module(images)
        if not in_place and not _find(calls, folding=True, activating=False):
            return ()
        _set_in_place(in_place, to=False)
        for folding in (True, False):
            found = _find(calls, folding=folding, activating=False)
            if _agrees(module, images, expected, found):
                activated = _find(calls, folding=folding, activating=has_operator)
                return activated if _agrees(module, images, expected, activated) else found
    _set_in_place(in_place, to=True)
    return ()


def _agrees(module: nn.Module, images: Tensor, expected: Tensor, convolutions: Sequence[Convolution]) -> bool:
    """Whether the features are the expected ones; not if modules take keywords, or an operator is missing."""
    try:
        with standing_in(convolutions):
            features = module(images)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool((features - expected).abs().max() <= _CLOSE * expected.abs().max())


def _set_in_place(activations: Sequence[Any], *, to: bool) -> None:
    for each in activations:
        each.inplace = to


def _find(calls: Mapping[nn.Module, list[tuple[Any, Any]]], *, folding: bool, activating: bool) -> list[Convolution]:
    """Convolutions with their own norms and activations, and slow backward ones, by what modules took and gave."""
    once = {module: runs[0] for module, runs in calls.items() if len(runs) == 1 and len(runs[0]) > 1}
    norms = {
        id(took): norm
        for norm, (took, _) in once.items()
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
    }
    activations = {id(took): each for each, (took, _) in once.items() if activating and type(each) in _ACTIVATIONS}
    found = []
    for conv in calls:
        if isinstance(conv, nn.Conv2d) and conv.padding_mode == "zeros":
            norm = norms.get(id(once[conv][1])) if folding and conv in once else None
            if norm is not None or _is_slow_backward(conv):
                then = None if norm is None or isinstance(conv.padding, str) else activations.get(id(once[norm][1]))
                found.append(Convolution(conv, norm, then))
    return found


def _is_slow_backward(conv: nn.Conv2d) -> bool:
    """Whether backward is slower in bfloat16 than in float32, up to eighty times: depthwise, strided or wide."""
    is_depthwise = 1 < conv.groups == conv.in_channels and not isinstance(conv.padding, str)
    return is_depthwise and (max(conv.stride) > 1 or max(conv.kernel_size) > _QUICK_KERNEL)


class _FullBackward(torch.autograd.Function):
    """A convolution in bfloat16 with gradients in float32."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, conv: nn.Conv2d) -> Tensor:
        half = torch.bfloat16
        inputs, weight = inputs.to(half), weight.to(half)
        ctx.save_for_backward(inputs, weight)
        ctx.conv = conv
        return conv._conv_forward(inputs, weight, None if bias is None else bias.to(half))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        inputs, weight = ctx.saved_tensors
        conv: nn.Conv2d = ctx.conv
        assert not isinstance(conv.padding, str)
        of_inputs, of_weight, of_bias = torch.ops.aten.convolution_backward(
            gradients[0].float(),
            inputs.float(),
            weight.float(),
            [len(weight)],
            conv.stride,
            conv.padding,
            conv.dilation,
            False,
            [0, 0],
            conv.groups,
            ctx.needs_input_grad[:3],
        )
        return of_inputs, of_weight, of_bias, None
