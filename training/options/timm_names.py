"""Models of timm by name, and the images that they were trained on; timm, and torch with it, is imported when asked."""

from __future__ import annotations

import difflib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from index.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from index.images.preprocess import PreprocessConfig


def find_timm_config(model: str) -> Any:
    """timm's `PretrainedCfg` of a model, of the tag in its name or of timm's own choice.

    Args:
        model: as timm names it, with or without a tag: `vit_small_patch14_dinov2.lvd142m`.

    Raises:
        InputError: no such model or tag, or one that takes other images than square ones of three colours.
        MissingDependencyError: timm is not installed.
    """
    if find_spec("timm") is None:
        raise MissingDependencyError(package="timm", extra="backbones", purpose=f"--backbone timm:{model}")
    import timm

    name, _, tag = model.partition(".")
    if not timm.is_model(name):
        source = name.partition(":")[0] if ":" in name else None
        if source is not None:
            raise InputError(
                f"--backbone timm:{model}: a run is rebuilt by its architecture's name alone, not from {source}; "
                "name that (timm.list_models()), and the file: --weights FILE"
            )
        close = (
            ", ".join(difflib.get_close_matches(name, timm.list_models(), n=3))
            or "resnet50, vit_small_patch16_224"
        )
        raise InputError(f"--backbone timm:{model} is no model of timm {timm.__version__}; similar names: {close}")
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


def describe_timm_input(model: str) -> PreprocessConfig:
    """Size, crop, interpolation, mean and deviation of the images that a model was trained on.

    Raises:
        InputError, MissingDependencyError: as of `find_timm_config`.
    """
    from index.images.preprocess import PreprocessConfig

    config = find_timm_config(model)
    crop = config.input_size[-1]
    return PreprocessConfig(
        resize=int(crop / config.crop_pct),  # timm rounds down
        crop=crop,
        interpolation=config.interpolation,
        mean=tuple(config.mean),
        std=tuple(config.std),
    )
