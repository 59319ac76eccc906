"""The built-in network as a backbone, with weights from its ONNX file."""

from __future__ import annotations

import math

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from index.errors import ModelFileError
from index.model.builtin import describe_builtin, find_builtin
from training.backbone import torchvision_models

_TRUNK, _HALF = "parts.trunk.", "_half"  # as the exporter names the network's own weights, and those in float16


def build_module(_: str, weights: str, *, seed: int, side: int | None = None) -> tuple[nn.Module, int]:
    """Network without its two last layers, and the width of its features; arguments as in `load_backbone`."""
    name = describe_builtin().backbone
    if weights != "pretrained":
        return torchvision_models.build_module(name, weights, seed=seed, side=side)
    module, feature_dim = torchvision_models.build_module(name, "none", seed=seed, side=side)
    _fill(module, _read_trunk())
    return module, feature_dim


def _read_trunk() -> dict[str, Tensor]:
    """Weights by their names in the network, float32."""
    graph = onnx.load(find_builtin()).graph
    return {
        weight.name.removeprefix(_TRUNK).removesuffix(_HALF): torch.from_numpy(
            numpy_helper.to_array(weight).astype(np.float32)
        )
        for weight in graph.initializer
        if weight.name.startswith(_TRUNK)
    }


@torch.no_grad()
def _fill(module: nn.Module, stored: dict[str, Tensor]) -> None:
    """Load the weights; the exporter has folded batch norm into the convolutions."""
    before = ""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.weight.fill_(math.sqrt(1 + layer.eps))
            _take_bias(stored, f"{before}.weight_bias", layer.bias)
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            if f"{name}.weight" not in stored:
                raise ModelFileError(str(find_builtin()), f"it lacks weights of its network: {name}.weight")
            layer.weight.copy_(stored.pop(f"{name}.weight"))
            _take_bias(stored, f"{name}.bias", layer.bias)
            before = name
    if stored:
        raise ModelFileError(str(find_builtin()), f"it has weights of another network: {', '.join(stored)}")


def _take_bias(stored: dict[str, Tensor], name: str, bias: Tensor | None) -> None:
    """Load a bias; the exporter leaves out zeros."""
    if bias is not None:
        bias.copy_(stored.pop(name) if name in stored else torch.zeros_like(bias))
