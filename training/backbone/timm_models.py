"""Backbones of timm: any model without the classifier."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from training.backbone.weights_files import fetch_weights, load_weights, read_weights, seeded


def build_module(name: str, weights: str, *, seed: int, side: int | None = None) -> tuple[nn.Module, int]:
    """Model without its classifier, and the width of its features; arguments as in `load_backbone`."""
    config = find_timm_config(name)
    if weights == "pretrained" and not config.has_weights:
        known = ", ".join(timm.list_models(f"{config.architecture}.*", pretrained=True)) or "none of this architecture"
        raise InputError(f"timm has no weights of {name}, but {known}; name one, or --weights FILE")
    sizes = {"img_size": side} if side not in (None, config.input_size[-1]) and config.fixed_input_size else {}
    try:
        with seeded(seed):
            module = timm.create_model(name, pretrained=False, num_classes=0, **sizes)
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        size = f"; leave out --crop {side}" if sizes else ""
        raise InputError(f"timm cannot make --backbone timm:{name}: {error}{size}") from error
    if weights == "pretrained":
        with fetch_weights(f"timm:{name}", licence=config.license, card=config.hf_hub_id):
            module = timm.create_model(name, pretrained=True, num_classes=0, **sizes)
    elif weights != "none":
        path, names = Path(weights), config.classifier
        dropped = (names,) if isinstance(names, str) else tuple(names or ())
        state = _as_timm_has_them(read_weights(path), module, name=name, path=path)
        load_weights(module, state, path=path, of=f"timm's {name}", dropped=dropped)
    width: Any = getattr(module, "head_hidden_size", None) or module.num_features
    return module, int(width)


def _as_timm_has_them(state: dict[str, Tensor], module: nn.Module, *, name: str, path: Path) -> Mapping[str, Tensor]:
    """Tensors of a file by today's names, with positions resampled, by the architecture's own filter."""
    home = import_module(timm.model_entrypoint(name.partition(".")[0]).__module__)
    convert = getattr(home, "checkpoint_filter_fn", None)
    if convert is None:
        return state
    try:
        return convert(state, module)
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: these are not weights of timm's {name}: its tensors cannot be read as such ({error!r}); name the "
            "right --backbone"
        ) from error


def find_timm_config(model: str) -> Any:
    """timm's `PretrainedCfg` of a model name with or without a tag: `vit_small_patch14_dinov2.lvd142m`."""
    name, _, tag = model.partition(".")
    if not timm.is_model(name):
        source = name.partition(":")[0] if ":" in name else None
        if source is not None:
            raise InputError(
                f"--backbone timm:{model}: a run is rebuilt by its architecture's name alone, not from {source}; "
                "name that (timm.list_models()), and the file: --weights FILE"
            )
        close = ", ".join(difflib.get_close_matches(name, timm.list_models(), n=3)) or "resnet50, vit_small_patch16_224"
        raise InputError(f"--backbone timm:{model} is not a model of timm {timm.__version__}; similar names: {close}")
    try:
        config = timm.get_pretrained_cfg(model)
    except RuntimeError as error:
        tags = ", ".join(full.partition(".")[2] for full in timm.list_models(f"{name}.*", pretrained=True))
        raise InputError(
            f"--backbone timm:{model}: timm knows no weights {tag!r} of {name}; it has {tags or 'none'}"
        ) from error
    channels, height, width = config.input_size
    if channels != 3 or height != width:
        raise InputError(
            f"--backbone timm:{model} takes images of {channels} x {height} x {width}; images are square here, of "
            "three colours: choose another"
        )
    return config


def describe_input(model: str) -> PreprocessConfig:
    """Preprocessing that a model was trained with."""
    config = find_timm_config(model)
    crop = config.input_size[-1]
    return PreprocessConfig(
        resize=int(crop / config.crop_pct),  # timm rounds down
        crop=crop,
        interpolation=config.interpolation,
        mean=tuple(config.mean),
        std=tuple(config.std),
    )
