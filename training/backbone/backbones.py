"""Frozen backbones by name, whichever library they come from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn

from index.errors import InputError
from training.options.backbone_libraries import find_library


@dataclass(frozen=True, slots=True)
class Backbone:
    """A classification model without its last layer, frozen and in eval mode (batch norm too).

    `module` maps (N, 3, H, W) float images to (N, feature_dim) features; `training.options.backbone_libraries` says how
    they are normalised.
    """

    name: str
    module: nn.Module
    feature_dim: int

    def hash_weights(self) -> str:
        """SHA-256 over the names and bytes of all weights."""
        digest = hashlib.sha256(self.name.encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def load_backbone(name: str, weights: str, *, seed: int = 0) -> Backbone:
    """Build a backbone by name.

    Args:
        name: of any torchvision classification model, or of another library's as `library/model`.
        weights: `imagenet` (fetched by the library), `none` (random by `seed`), or a safetensors or torch
            state-dict file in the library's layout, with or without the last layer.

    Raises:
        InputError: unknown name; a file that is missing, unreadable or of another architecture; weights that cannot
            be fetched.
    """
    library, model = find_library(name)
    source = import_module(f"training.backbone.{library.module}")
    module, feature_dim = source.build_module(model, weights, seed=seed)
    return Backbone(name, module.eval().requires_grad_(False), feature_dim)


@torch.inference_mode()
def require_input_size(backbone: Backbone, side: int) -> None:
    """Refuse images of a size that the architecture cannot take, before any long work.

    Raises:
        InputError: vision transformers are made for one size; others have a smallest one.
    """
    try:
        backbone.module(torch.zeros(1, 3, side, side))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"--backbone {backbone.name} cannot take images of --crop {side} pixels a side: {error}"
        ) from error


def normalise_images(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(N, H, W, 3) uint8 to (N, 3, H, W) float32, mean 0 and deviation 1 per channel.

    `mean` and `std` are (1, 3, 1, 1), for values in 0..255.
    """
    return (images.permute(0, 3, 1, 2).float() - mean) / std
