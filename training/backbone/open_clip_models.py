"""Backbones of open_clip: the vision tower of any of its models, to the space that it shares with the text.

The features are what the tower gives, its projection included: images were compared by these in its training.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import open_clip
import torch
from open_clip.model import _build_vision_tower, resize_pos_embed
from open_clip.timm_model import TimmModel
from torch import nn

from index.errors import InputError
from training.backbone.weights_files import fetch_weights, hushed_library, load_weights, read_weights
from training.options.open_clip_names import OpenClipModel, find_open_clip_model


def build_module(name: str, weights: str, *, seed: int, side: int | None = None) -> tuple[nn.Module, int]:
    """The vision tower, and the width of its features; arguments and errors of `load_backbone`."""
    found = find_open_clip_model(name)
    side = found.side if side is None else side
    try:
        if weights == "pretrained":
            tower = _fetch(found, name=name, side=side)
        else:
            tower = _build_random(found, seed=seed, side=side)
            if weights != "none":
                _load_file(tower, Path(weights), model=found.model)
            if side != found.side and isinstance(tower, TimmModel):
                tower.set_input_size(side)  # which resamples its positions
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"open_clip cannot make --backbone open_clip:{name} for images of --crop {side}: {error}"
        ) from error
    return tower, int(found.config["embed_dim"])


def _fetch(found: OpenClipModel, *, name: str, side: int) -> nn.Module:
    tags = ", ".join(open_clip.list_pretrained_tags_by_model(found.model))
    if found.tag is None:
        raise InputError(
            f"--weights pretrained: which of open_clip's for {found.model}? Name them with the backbone: "
            f"open_clip:{found.model}/TAG, with TAG one of {tags or 'none'}; or --weights FILE"
        )
    with fetch_weights(f"open_clip:{name}"):
        file = open_clip.download_pretrained(open_clip.get_pretrained_cfg(found.model, found.tag))
    size = {} if side == found.side else {"force_image_size": side}
    with hushed_library():
        tower = open_clip.create_model(found.model, pretrained=str(file), pretrained_text=False, **size).visual
    if hasattr(tower, "output_tokens"):
        tower.output_tokens = False
    return tower


def _build_random(found: OpenClipModel, *, seed: int, side: int) -> nn.Module:
    """The tower alone, as open_clip's own classes make it: what is for text may need more packages, or a network."""
    vision = {**found.config["vision_cfg"], "image_size": side, "output_tokens": False}
    vision["timm_model_pretrained"] = False
    gelu = bool(found.config.get("quick_gelu"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build_vision_tower(found.config["embed_dim"], vision, quick_gelu=gelu)


def _load_file(tower: nn.Module, path: Path, *, model: str) -> None:
    """Weights of the whole model, or of its tower; positions are resampled to the tower's size."""
    state = read_weights(path)
    whole = any(key.startswith("visual.") for key in state)
    of_tower = {key: value for key, value in state.items() if key.startswith("visual.") or not whole}
    of_tower = {f"visual.{key.removeprefix('visual.')}": value for key, value in of_tower.items()}
    with suppress(
        RuntimeError, TypeError, ValueError
    ):  # what cannot be resampled has another shape, which is told
        resize_pos_embed(of_tower, SimpleNamespace(visual=tower))
    own = {key.removeprefix("visual."): value for key, value in of_tower.items()}
    load_weights(tower, own, path=path, of=f"the vision tower of open_clip's {model}")
