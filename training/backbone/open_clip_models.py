"""Backbones of open_clip: the vision tower of a model, with its projection to the space shared with text; text towers.

A name is a model's, or `model/tag` with the tag of its pretrained weights: `ViT-B-32/laion2b_s34b_b79k`. Preprocessing
belongs to the weights; without a tag it is what all of a model's weights agree on, else open_clip's default.
"""

import difflib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
from open_clip.model import _build_text_tower, _build_vision_tower, convert_to_custom_text_state_dict, resize_pos_embed
from open_clip.timm_model import TimmModel
from open_clip.transform import PreprocessCfg, merge_preprocess_dict
from torch import nn

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from training.backbone.weights_files import fetch_weights, hushed_library, load_weights, read_weights, seeded


def find_model(name: str) -> tuple[str, str, dict[str, Any], PreprocessConfig]:
    """Model, tag of its weights, its config (`embed_dim`, …) and preprocessing; nothing is cropped off."""
    model, _, tag = name.partition("/")
    config = open_clip.get_model_config(model) if model in open_clip.list_models() else None
    if config is None:
        close = ", ".join(difflib.get_close_matches(model, open_clip.list_models(), n=3)) or "ViT-B-32, ViT-L-14"
        raise InputError(f"--backbone open_clip:{name}: {model!r} is not a model of open_clip; similar names: {close}")
    tags = open_clip.list_pretrained_tags_by_model(model)
    if tag and not open_clip.is_pretrained_cfg(model, tag):
        problem = f"open_clip knows no weights {tag!r} of {model}; it has {', '.join(tags) or 'none'}"
        raise InputError(f"--backbone open_clip:{name}: {problem}")
    size = config["vision_cfg"].setdefault("image_size", 224)
    if not isinstance(size, int):
        raise InputError(f"--backbone open_clip:{name} takes images of {size}; images are square here: choose another")
    known = [open_clip.get_pretrained_cfg(model, one) for one in ([tag] if tag else tags)]
    if tag and bool(known[0].get("quick_gelu")) != bool(config.get("quick_gelu")):
        other = model.removesuffix("-quickgelu") if config.get("quick_gelu") else f"{model}-quickgelu"
        problem = f"these weights were trained with another activation; choose open_clip:{other}/{tag}"
        raise InputError(f"--backbone open_clip:{name}: {problem}")
    merged = [merge_preprocess_dict(PreprocessCfg(), weights) for weights in known]
    agree = bool(merged) and all(one == merged[0] for one in merged)
    own = dict(merged[0]) if agree else asdict(PreprocessCfg())
    preprocess = PreprocessConfig(size, size, own["interpolation"], tuple(own["mean"]), tuple(own["std"]))
    return model, tag, config, preprocess


def describe_input(name: str) -> PreprocessConfig:
    """Preprocessing that a tower was trained with."""
    return find_model(name)[3]


def build_module(name: str, weights: str, *, seed: int, side: int | None = None) -> tuple[nn.Module, int]:
    """Vision tower, and the width of its features; arguments as in `load_backbone`."""
    model, tag, config, preprocess = find_model(name)
    own_side, width = preprocess.crop, int(config["embed_dim"])
    side = own_side if side is None else side
    try:
        if weights == "pretrained":
            options = {} if side == own_side else {"force_image_size": side}
            return _without_tokens(_fetch(model, tag, **options).visual), width
        # By open_clip's own classes, as the text part may need more packages or a download.
        vision = {**config["vision_cfg"], "image_size": side, "output_tokens": False, "timm_model_pretrained": False}
        with seeded(seed):
            tower = _build_vision_tower(width, vision, quick_gelu=bool(config.get("quick_gelu")))
        if weights != "none":
            _load_file(tower, Path(weights), model=model)
        if side != own_side and isinstance(tower, TimmModel):
            tower.set_input_size(side)  # which resamples its positions
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"open_clip cannot make --backbone open_clip:{name} for images of --crop {side}: {error}"
        ) from error
    return tower, width


def build_text_tower(name: str, weights: str, *, seed: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """Text tower with its projection, (N, T) int64 tokens to (N, D) float32, and its config; as `build_module`."""
    model, tag, config, _ = find_model(name)
    text = {**config["text_cfg"], "output_tokens": False}
    if text.get("hf_model_name") or text.get("tokenizer_mode") or text.get("tokenizer_kwargs", {}).keys() - {"clean"}:
        raise InputError(
            f"--with-text: the text tower of open_clip:{name} needs a tokenizer or a network of transformers, which "
            "cannot be exported here; take another model, or its ONNX files with --text-model"
        )
    if weights == "pretrained":
        return _without_tokens(_fetch(model, tag, force_custom_text=True).text).eval(), text
    with seeded(seed):
        tower = _build_text_tower(int(config["embed_dim"]), text, quick_gelu=bool(config.get("quick_gelu")))
    if weights != "none":
        state = convert_to_custom_text_state_dict(read_weights(Path(weights)))
        own = {key.removeprefix("text."): value for key, value in state.items() if key.startswith("text.")}
        load_weights(tower, own, path=Path(weights), of=f"the text tower of open_clip's {model}")
    return tower.eval(), text


def _without_tokens(tower: nn.Module) -> nn.Module:
    """The tower, giving nothing but embeddings."""
    if hasattr(tower, "output_tokens"):
        tower.output_tokens = False  # type: ignore[assignment]
    return tower


def _fetch(model: str, tag: str, **options: Any) -> Any:
    """The whole model with its pretrained weights."""
    if not tag:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(model))
        raise InputError(
            f"--weights pretrained: which of open_clip's for {model}? Name them with the backbone: "
            f"open_clip:{model}/TAG, with TAG one of {tags or 'none'}; or --weights FILE"
        )
    weights = open_clip.get_pretrained_cfg(model, tag)
    with fetch_weights(f"open_clip:{model}/{tag}", card=weights.get("hf_hub", "").strip("/") or None):
        file = open_clip.download_pretrained(weights)
    with hushed_library():
        return open_clip.create_model(model, pretrained=str(file), pretrained_text=False, **options)


def _load_file(tower: nn.Module, path: Path, *, model: str) -> None:
    """Load weights of the whole model or of its tower, with positions resampled to the tower's size."""
    state = read_weights(path)
    whole = any(key.startswith("visual.") for key in state)
    of_tower = {key: value for key, value in state.items() if key.startswith("visual.") or not whole}
    of_tower = {f"visual.{key.removeprefix('visual.')}": value for key, value in of_tower.items()}
    with suppress(RuntimeError, TypeError, ValueError):  # `load_weights` reports the shape of what cannot be resampled
        resize_pos_embed(of_tower, SimpleNamespace(visual=tower))
    own = {key.removeprefix("visual."): value for key, value in of_tower.items()}
    load_weights(tower, own, path=path, of=f"the vision tower of open_clip's {model}")
