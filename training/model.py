"""The three parts: a frozen backbone, the confidence module, the embedding head; and the model that is exported."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import math
import pickle
import struct
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from index.errors import InputError
from index.preprocess import PreprocessConfig

_AUXILIARY = ("aux1", "aux2", "AuxLogits")
# What the readers of weights raise when damaged files are fed to them.
_UNREADABLE = (
    SafetensorError, OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError,
    AssertionError, struct.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Backbone:
    """A torchvision classification model without its last layer, frozen and in eval mode (batch norm too).

    `module` maps (N, 3, H, W) normalised float images to (N, feature_dim) features.
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
    """Build a backbone by torchvision name.

    Args:
        name: of any torchvision classification model.
        weights: `imagenet` (fetched by torchvision), `none` (random by `seed`), or a safetensors or torch
            state-dict file in torchvision's layout, with or without the last layer.
        seed: of `none`.

    Raises:
        InputError: unknown name; a file that is missing, unreadable or of another architecture; weights that cannot
            be fetched.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        close = ", ".join(difflib.get_close_matches(name, known, n=3)) or "resnet50, mobilenet_v2, vit_b_16"
        raise InputError(f"--backbone {name!r} is no torchvision classification model; similar names: {close}")
    module = _fetch_imagenet(name) if weights == "imagenet" else _build_random(name, seed=seed)
    _drop_auxiliary_classifiers(module)
    classifier, feature_dim = remove_last_layer(module)
    if weights not in ("imagenet", "none"):
        _load_file_weights(module, Path(weights), name=name, classifier=classifier)
    return Backbone(name, module.eval().requires_grad_(False), feature_dim)


def _fetch_imagenet(name: str) -> nn.Module:
    try:
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # torch announces the download on stdout, which is for results
            return torchvision.models.get_model(name, weights="DEFAULT")
    except OSError as error:
        raise InputError(
            f"the ImageNet weights of {name} could not be fetched ({error}); "
            "fetch them on a connected machine and pass the file: --weights FILE"
        ) from error


def _build_random(name: str, *, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extra = {"init_weights": True, "transform_input": True} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, weights=None, **extra)


def _drop_auxiliary_classifiers(module: nn.Module) -> None:
    """GoogLeNet's and Inception's side classifiers only train; some weights come with them, some without."""
    for name in _AUXILIARY:
        if hasattr(module, name):
            setattr(module, name, None)


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


def remove_last_layer(module: nn.Module) -> tuple[str, int]:
    """Replace the classifier's last layer by the identity; its name, and the width of what enters it."""
    layers = [(n, m) for n, m in module.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    linear = [(n, m) for n, m in layers if isinstance(m, nn.Linear)]
    name, last = linear[-1] if linear else layers[-1]  # SqueezeNet classifies with a convolution
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    return name, last.in_features if isinstance(last, nn.Linear) else last.in_channels


def _load_file_weights(module: nn.Module, path: Path, *, name: str, classifier: str) -> None:
    dropped = tuple(f"{part}." for part in (classifier, *_AUXILIARY))
    state = {key: value for key, value in _read_state(path).items() if not key.startswith(dropped)}
    own = module.state_dict()
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unknown = [key for key in state if key not in own]
    shapes = [key for key in own if key in state and own[key].shape != state[key].shape]
    for what, keys in (("lacks", missing), ("has unknown", unknown), ("has other shapes for", shapes)):
        if keys:
            raise InputError(
                f"{path}: these are not weights of torchvision's {name}: the file {what} {len(keys)} of "
                f"{len(own)} tensors ({', '.join(keys[:3])}, …); name the right --backbone"
            )
    module.load_state_dict(state, strict=False)


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"{path}: no such weights file; --weights takes imagenet, none or a file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path}: not a safetensors file or torch state dict, or one that holds more than weights; "
            "save only the state dict: torch.save(model.state_dict(), FILE)"
        ) from error
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a safetensors file or torch state dict: {error}") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path}: expected a dictionary of tensors (a state dict), got {type(state).__name__}")
    return state


class ConfidenceModule(nn.Module):
    """Linear(F, hidden), ReLU, Linear(hidden, C), sigmoid: how far a sample belongs to each training class."""

    def __init__(self, feature_dim: int, *, hidden: int, class_count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.reduce = nn.Linear(feature_dim, hidden)
        self.classify = nn.Linear(hidden, class_count)
        nn.init.kaiming_normal_(self.reduce.weight, nonlinearity="relu", generator=generator)
        nn.init.xavier_uniform_(self.classify.weight, generator=generator)
        nn.init.zeros_(self.reduce.bias)
        nn.init.zeros_(self.classify.bias)

    def logits(self, features: Tensor) -> Tensor:
        """(B, F) features to (B, C) logits."""
        return self.classify(nn.functional.relu(self.reduce(features)))

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) features to (B, C) confidences in 0..1."""
        return torch.sigmoid(self.logits(features))


class EmbeddingHead(nn.Module):
    """One linear layer and L2 normalisation: (B, F) features to (B, D) unit rows."""

    def __init__(self, feature_dim: int, *, embedding_dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(feature_dim, embedding_dim)
        nn.init.kaiming_normal_(self.linear.weight, mode="fan_out", generator=generator)
        nn.init.zeros_(self.linear.bias)

    @property
    def embedding_dim(self) -> int:
        return self.linear.out_features

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(self.linear(features))


class ProjectionHead(nn.Module):
    """L2 normalisation, a fixed affine projection, L2 normalisation: PCA with or without whitening."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)  # (D, F) float32
        self.register_buffer("bias", bias)  # (D,) float32

    @property
    def embedding_dim(self) -> int:
        return len(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        projected = nn.functional.linear(nn.functional.normalize(features), self.weight, self.bias)
        return nn.functional.normalize(projected)


class WhitenedHead(nn.Module):
    """A head in training that began as the first D of K fixed directions: (B, F) features to (B, D) unit rows.

    The features are L2-normalised and projected onto all K; `mix` (D, K) is what is trained.

    Args:
        weight: (K, F) float32 directions.
        bias: (K,) float32.
        embedding_dim: D.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, *, embedding_dim: int) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.mix = nn.Parameter(torch.eye(embedding_dim, len(weight)))

    @property
    def embedding_dim(self) -> int:
        return len(self.mix)

    def forward(self, features: Tensor) -> Tensor:
        directions = nn.functional.linear(nn.functional.normalize(features), self.weight, self.bias)
        return nn.functional.normalize(directions @ self.mix.T)

    def drift(self) -> Tensor:
        """() squared distance of `mix` from where it began, over sqrt(D): wide heads move more rows for the same."""
        moved = self.mix - torch.eye(*self.mix.shape, device=self.mix.device)
        return moved.square().sum() / math.sqrt(len(self.mix))

    def fold(self) -> ProjectionHead:
        """The same map as one projection."""
        mix = self.mix.detach()
        return ProjectionHead(mix @ self.weight, mix @ self.bias)


class RawHead(nn.Module):
    """L2 normalisation only: the features as they are."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.embedding_dim = feature_dim

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(features)


Head = EmbeddingHead | ProjectionHead | RawHead


class EmbeddingModel(nn.Module):
    """What is exported: (N, H, W, 3) uint8 images to (N, D) float32 unit rows."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, head: nn.Module, preprocess: PreprocessConfig) -> None:
        super().__init__()
        self.parts = nn.Sequential(OrderedDict(backbone=backbone.module, head=head))
        self.register_buffer("mean", 255 * torch.tensor(preprocess.mean).view(1, 3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(preprocess.std).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.parts(normalise_images(images, self.mean, self.std))


def normalise_images(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(N, H, W, 3) uint8 to (N, 3, H, W) float32, mean 0 and deviation 1 per channel.

    `mean` and `std` are (1, 3, 1, 1), for values in 0..255.
    """
    return (images.permute(0, 3, 1, 2).float() - mean) / std
