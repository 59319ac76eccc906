"""Backbones of torchvision: any classification model without its last layer."""

import difflib
from pathlib import Path

import torchvision
from torch import nn

from index.errors import InputError
from training.backbone.weights_files import fetch_weights, load_weights, read_weights, seeded

# GoogLeNet's and Inception's only train; some weights come with them, some without.
_AUXILIARY = ("aux1", "aux2", "AuxLogits")


def build_module(name: str, weights: str, *, seed: int, side: int | None = None) -> tuple[nn.Module, int]:
    """Model without its last layer, and the width of its features; arguments as in `load_backbone`.

    `side` has no effect: the vision transformers have one size.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        close = ", ".join(difflib.get_close_matches(name, known, n=3)) or "resnet50, mobilenet_v2, vit_b_16"
        raise InputError(
            f"--backbone {name!r} is not a torchvision classification model; similar names: {close} "
            "(models of other libraries: timm:NAME, open_clip:NAME)"
        )
    if weights == "pretrained":
        with fetch_weights(name):
            module = torchvision.models.get_model(name, weights="DEFAULT")
    else:
        extra = {"init_weights": True, "transform_input": True} if name in ("googlenet", "inception_v3") else {}
        with seeded(seed):
            module = torchvision.models.get_model(name, weights=None, **extra)
    for auxiliary in _AUXILIARY:
        if hasattr(module, auxiliary):
            setattr(module, auxiliary, None)
    layers = [(n, m) for n, m in module.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    linear = [(n, m) for n, m in layers if isinstance(m, nn.Linear)]
    classifier, last = linear[-1] if linear else layers[-1]  # SqueezeNet classifies with a convolution
    parent, _, child = classifier.rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    if weights not in ("pretrained", "none"):
        path, dropped = Path(weights), (classifier, *_AUXILIARY)
        load_weights(module, read_weights(path), path=path, of=f"torchvision's {name}", dropped=dropped)
    return module, last.in_features if isinstance(last, nn.Linear) else last.in_channels
