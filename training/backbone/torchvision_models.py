"""Backbones of torchvision: any of its classification models without the last layer."""

from __future__ import annotations

import contextlib
import difflib
import pickle
import struct
import sys
from pathlib import Path

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from index.errors import InputError

_AUXILIARY = ("aux1", "aux2", "AuxLogits")
# What the readers of weights raise when damaged files are fed to them.
_UNREADABLE = (
    SafetensorError, OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError,
    AssertionError, struct.error,
)  # fmt: skip


def build_module(name: str, weights: str, *, seed: int) -> tuple[nn.Module, int]:
    """The model without its last layer, and the width of its features; arguments and errors of `load_backbone`."""
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        close = ", ".join(difflib.get_close_matches(name, known, n=3)) or "resnet50, mobilenet_v2, vit_b_16"
        raise InputError(f"--backbone {name!r} is no torchvision classification model; similar names: {close}")
    module = _fetch_imagenet(name) if weights == "imagenet" else _build_random(name, seed=seed)
    _drop_auxiliary_classifiers(module)
    classifier, feature_dim = remove_last_layer(module)
    if weights not in ("imagenet", "none"):
        _load_file_weights(module, Path(weights), name=name, classifier=classifier)
    return module, feature_dim


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
