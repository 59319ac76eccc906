"""EfficientNet-Lite2 without batch norm: the network of the built-in model, with weights from its ONNX file."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from index.errors import ModelFileError
from index.model.builtin import find_builtin
from training.backbone.weights_files import load_weights, read_weights, seeded

FEATURES = 1280
_IN_GRAPH, _QUANTIZED = "parts.backbone.network.", "_quantized"  # as exporter and quantiser name its weights
_SIX = 0x40C0  # bits of 6 in bfloat16
_STEM = 32
# Of each stage: blocks, kernel, stride of the first block, expansion, channels (Tan and Le 2019, width 1.1, depth 1.2).
_STAGES = (
    (1, 3, 1, 1, 16),
    (3, 3, 2, 6, 24),
    (3, 5, 2, 6, 48),
    (4, 3, 2, 6, 88),
    (4, 5, 1, 6, 120),
    (5, 5, 2, 6, 208),
    (1, 3, 1, 6, 352),
)


def build_module(_: str, weights: str, *, seed: int, side: int | None = None) -> tuple[nn.Module, int]:
    """Network without the classifier, and the width of its features; arguments as in `load_backbone`."""
    with seeded(seed):
        module = EfficientNetLite2()
    if weights == "pretrained":
        stored = _read_from_graph()
        if wrong := sorted(stored.keys() ^ module.state_dict().keys()):
            raise ModelFileError(str(find_builtin()), f"it has not the weights of its network, first {wrong[0]}")
        module.load_state_dict(stored)
    elif weights != "none":
        load_weights(module, read_weights(Path(weights)), path=Path(weights), of="builtin's efficientnet_lite2")
    return module, FEATURES


class EfficientNetLite2(nn.Sequential):
    """(N, 3, H, W) float images, normalised by mean and deviation .5, to (N, 1280) features.

    Batch norm is folded into the convolutions, and padding is symmetric. At sides of 32 n + 1 pixels that pads as
    TensorFlow did in the original training; at other sides, strided layers are shifted by half a pixel.
    """

    def __init__(self) -> None:
        blocks, width = list[nn.Module](), _STEM
        for count, kernel, stride, expansion, channels in _STAGES:
            for number in range(count):
                first = stride if number == 0 else 1
                blocks.append(_Block(width, channels, kernel=kernel, stride=first, expansion=expansion))
                width = channels
        super().__init__(
            OrderedDict(
                stem=_convolution(3, _STEM, kernel=3, stride=2),
                blocks=nn.Sequential(*blocks),
                last=_convolution(width, FEATURES, relu=nn.ReLU6),  # which keeps NaN
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(1),
            )
        )


class _Block(nn.Sequential):
    """Inverted residual (MobileNetV2): 1x1 expansion, depthwise convolution, linear 1x1 projection."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int) -> None:
        width = expansion * inputs
        expand = [] if expansion == 1 else [_convolution(inputs, width)]
        super().__init__(
            *expand,
            _convolution(width, width, kernel=kernel, stride=stride, groups=width),
            nn.Conv2d(width, outputs, 1),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        found: Tensor = super().forward(maps)
        return maps + found if self.adds else found


class _QuickReLU6(nn.ReLU6):
    """ReLU6; in bfloat16 on a CPU, without gradients, on the bits: equal for all numbers, and six times as fast.

    As int16, the bits of bfloat16 numbers from 0 on are in their order, and those of negative ones are negative. NaN
    becomes a number.
    """

    def forward(self, maps: Tensor) -> Tensor:
        if maps.dtype is not torch.bfloat16 or maps.device.type != "cpu" or maps.requires_grad:
            return super().forward(maps)
        return maps.view(torch.int16).clamp_(0, _SIX).view(torch.bfloat16)


def _convolution(
    inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1, groups: int = 1, relu: type[nn.ReLU6] = _QuickReLU6
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups)
    return nn.Sequential(conv, relu(inplace=True))


def _read_from_graph() -> dict[str, Tensor]:
    """Weights by their names in the network, float32; those in int8 are multiplied by their scales."""
    graph = onnx.load(find_builtin()).graph
    arrays = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in arrays:
            stored, scale, zero = (arrays[name].astype(np.float32) for name in node.input)
            shape = (-1, *[1] * (stored.ndim - 1))  # a scale for each output channel
            arrays[node.input[0]] = (stored - zero.reshape(shape)) * scale.reshape(shape)
    return {
        name.removeprefix(_IN_GRAPH).removesuffix(_QUANTIZED): torch.from_numpy(array)
        for name, array in arrays.items()
        if name.startswith(_IN_GRAPH) and not name.endswith(("_scale", "_zero_point"))
    }
