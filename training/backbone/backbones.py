"""Frozen backbones by name, from any library."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from index.errors import InputError
from training.backbone.feature_maps import choose_maps
from training.backbone.onnx_models import OnnxBackbone
from training.backbone.pooling import BothViews, PooledFeatures
from training.options.backbone_libraries import (
    BUILTIN,
    BUILTIN_NETWORK,
    DEFAULT_LIBRARY,
    LIBRARIES,
    OnnxSettings,
    find_library,
    is_onnx_file,
)


@dataclass(frozen=True, slots=True)
class Backbone:
    """Classification model without its last layer, frozen and in eval mode (batch norm too).

    `module` maps normalised (N, 3, H, W) float images to (N, feature_dim) features.

    Attributes:
        view: `crop` and `whole` take the image as given, `both` makes two views of it inside.
        pooling: `own`, `gem`, `layers` or `every`.
        side: image size of the network in pixels; None where neither view nor pooling needs it.
    """

    name: str
    module: nn.Module
    feature_dim: int
    view: str = "crop"
    pooling: str = "own"
    side: int | None = None

    @property
    def short_name(self) -> str:
        """The name without the folders of an ONNX file."""
        return Path(self.name).name if self.name.endswith(".onnx") else self.name

    @property
    def network(self) -> nn.Module:
        """The library's model, without our views and poolings."""
        module = self.module.features if isinstance(self.module, BothViews) else self.module
        return module.network if isinstance(module, PooledFeatures) else module

    def hash_weights(self) -> str:
        """SHA-256 over the names and bytes of all weights."""
        digest = hashlib.sha256(self.short_name.encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def load_backbone(
    name: str, weights: str, *, seed: int = 0, side: int | None = None, onnx: OnnxSettings | None = None
) -> Backbone:
    """Build a backbone by name.

    Args:
        name: of a torchvision classification model, or `library:model`.
        weights: `pretrained` (downloaded by the library; `imagenet` is the same for torchvision), `none` (random by
            `seed`), or a safetensors or torch state-dict file in the library's layout, with or without the last layer.
        side: image size in pixels, if not the model's own; a network of one size is built for this size, with resampled
            weights, where its library can do that.
        onnx: settings of an ONNX file.
    """
    library, model = find_library(name)
    if weights == "imagenet":
        if library is not LIBRARIES[DEFAULT_LIBRARY]:
            raise InputError(
                f"--weights imagenet is a word for torchvision's; those that come with {name}: --weights pretrained"
            )
        weights = "pretrained"
    source = import_module(f"training.backbone.{library.module}")
    settings = {} if onnx is None or not is_onnx_file(name) else {"settings": onnx}
    module, feature_dim = source.build_module(model, weights, seed=seed, side=side, **settings)
    if name == BUILTIN:  # runs and models name what it is: a later version may have another one
        name = BUILTIN_NETWORK
    return Backbone(name, module.eval().requires_grad_(False), feature_dim)


def rebuild_backbone(name: str, state: Mapping[str, Tensor], *, side: int) -> Backbone:
    """The backbone of a name with these weights, which are of its `network.state_dict()`."""
    if is_onnx_file(name):
        module = OnnxBackbone(state["graph"])
        return Backbone(name, module.eval(), module.width)
    backbone = load_backbone(name, "none", side=side)
    backbone.network.load_state_dict(state)
    return backbone


def with_features(backbone: Backbone, *, view: str = "crop", pooling: str = "own", side: int) -> Backbone:
    """Backbone with another view and pooling; `backbone` itself is not changed.

    Args:
        view: `crop`, `whole` or `both`, which takes images larger than `side`.
        pooling: `own`, `gem` or `layers`.
        side: image size of the network in pixels.
    """
    module, feature_dim = backbone.network, backbone.feature_dim
    try:
        if pooling != "own":
            module = pooled = PooledFeatures(module, pooling, side=side)
            feature_dim = pooled.feature_dim
        elif backbone.pooling != "own":
            feature_dim, _ = choose_maps(module, side=side)
    except (InputError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"--pooling {pooling} reads the feature maps of a convolutional network, which --backbone "
            f"{backbone.name} does not offer: {error}; leave --pooling at own"
        ) from error
    if view == "both":
        module = BothViews(module, side=side)
    module = module.eval().requires_grad_(False)
    return Backbone(backbone.name, module, feature_dim, view=view, pooling=pooling, side=side)


@torch.inference_mode()
def require_input_size(backbone: Backbone, side: int, *, flag: str = "--crop") -> None:
    """Refuse an image size that the architecture cannot take."""
    device = next(iter(backbone.network.state_dict().values())).device
    try:
        features = backbone.module(torch.zeros(1, 3, side, side, device=device))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"--backbone {backbone.name} cannot take images of {flag} {side} pixels a side: {error}"
        ) from error
    if not isinstance(features, Tensor) or features.flatten(1).shape[1] != backbone.feature_dim:
        seen = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"--backbone {backbone.name} makes {seen} of one image of --crop {side}, not one vector of "
            f"{backbone.feature_dim} features; choose another"
        )


def normalise_images(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(N, H, W, 3) uint8 to (N, 3, H, W) float32; `mean` and `std` are (1, 3, 1, 1), for values in 0..255."""
    return (images.permute(0, 3, 1, 2).float() - mean) / std


def arrange_images(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """`normalise_images`, in the memory layout that is fastest for convolutions."""
    return normalise_images(images, mean, std).contiguous(memory_format=torch.channels_last)
