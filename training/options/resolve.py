"""Resolution of given options to a `TrainConfig`, with a recipe's values for the others.

The command line, the Python API and the benchmarks make their configs here. Nothing here imports torch, so that
`retrieval train --help` is quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from index.config_fields import flag_of, make_config, option_names, refuse_unknown
from index.errors import InputError
from training.options.backbone_libraries import BUILTIN, is_onnx_file, own_input
from training.options.config import WEIGHTS, HeadConfig, InputConfig, TrainConfig
from training.options.finetuning import FinetuneConfig
from training.options.losses import LOSSES, METHODS, RIVALS, LossConfig, option_groups, options_of

if TYPE_CHECKING:
    from index.images.preprocess import PreprocessConfig

RECIPES = ("default", "spa-paper")
# How these were found, and what was tried beside them: docs/recipe.md.
DEFAULT: Mapping[str, Any] = MappingProxyType(
    {
        "method": "spa",
        "head_alpha": 4.0,
        "targets": "posteriors",
        "confidences": "leave-one-out",
        "nca_scale": 0.0,
        "init": "wccn",
        "l2_sp": None,  # chosen by the holdout evaluation
        "select": "auto",
        "head_steps": 300,
        "head_batch_size": 256,
        "head_lr": 1e-3,
    }
)
_OF_MODULE = ("confidence_epochs", "confidence_hidden", "confidence_lr", "confidence_val_share", "confidence_patience")
_OF_TRAINING = (  # without effect for a method without training
    "for_",
    "min_confidence",
    "confidences",
    *_OF_MODULE,
    *(name for name in option_names(HeadConfig) if name != "embedding_dim"),
)
_OF_FINETUNING = tuple(name for name in option_names(FinetuneConfig) if name != "frozen")
_LOSS_OPTIONS = frozenset(option_names(*option_groups()))


def resolve(recipe: str = "default", **given: Any) -> TrainConfig:
    """Config of `retrieval train` with these options: `resolve(weights="none")` is that with `--weights none`.

    Args:
        recipe: `default`, or `spa-paper` for the values of the papers.
        given: options by their flags' names, with `_` for `-` (`lambda_` for --lambda). Without `weights` the backbone
            is the built-in model.

    Raises:
        InputError: naming the flag: unknown, with an invalid value, or without effect for this method.
    """
    if recipe not in RECIPES:
        raise InputError(f"--recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
    refuse_unknown(given, TrainConfig, *option_groups())
    typed = given if recipe == "default" else {**given, "recipe": recipe}
    if "weights" not in given:
        if given.get("backbone", BUILTIN) != BUILTIN and not is_onnx_file(str(given["backbone"])):
            raise InputError("--weights is missing: pretrained, none or a FILE")
        given = {"backbone": BUILTIN, "weights": "pretrained", **given}
    if given.get("head_epochs") is not None and given.get("head_steps") is not None:
        raise InputError("--head-epochs and --head-steps: give one of them, not both")
    if why_frozen({**given, "recipe": recipe}) is not None:
        given = {**given, "frozen": True}
    # The paper's width is 64; else it depends on images and backbone.
    width = {} if recipe == "spa-paper" else {"embedding_dim": None}
    method = given.get("method")
    defaults = recipe_values(recipe, method=method if method in METHODS else None)
    if given.get("head_epochs") is not None:
        defaults.pop("head_steps", None)
    if given.get("alpha") is not None:
        defaults.pop("head_alpha", None)
    if given.get("init") == "random":
        defaults.pop("l2_sp", None)
    if method is not None or given.get("holdout") is False:
        defaults.pop("select", None)  # a named method is exported as it is; of the others nothing can be compared
    values = {**width, **defaults, **_own_sizes(given), **given}
    if str(values.get("backbone", "")).endswith(".onnx"):
        values["backbone"] = absolute_file(values["backbone"])
    if values.get("weights") is not None:
        values["weights"] = absolute_file(values["weights"])
    method = values.get("method", LossConfig().method)
    loss = LossConfig(method)  # refuses an unknown method
    asked = {name: absolute_file(value) if name == "weights" else value for name, value in typed.items()}
    if others := sorted(_LOSS_OPTIONS.intersection(given) - set(option_names(type(loss.options)))):
        takers = [taker for taker in LOSSES if others[0] in option_names(options_of(taker))]
        raise _refuse(others[0], f"--method {', '.join(takers)}, not with --method {method}")
    config = make_config(TrainConfig, {**values, "options": make_config(type(loss.options), values), "given": asked})
    for name, user in unused_options(config):
        if name in given:
            raise _refuse(name, user)
    return config


def why_frozen(given: Mapping[str, Any]) -> str | None:
    """Reason why a training with these options leaves the network as it is, though --frozen does not say so.

    None where the network is fine-tuned: by default, and wherever an option of fine-tuning is given.
    """
    if any(given.get(name) is not None for name in ("frozen", *_OF_FINETUNING)):
        return None
    backbone, method = (str(given.get(name)) for name in ("backbone", "method"))
    if is_onnx_file(backbone):
        return f"--backbone {backbone} is an ONNX file, which does not train"
    if method in RIVALS:
        return f"--method {method} has no loss"
    if given.get("recipe") == "spa-paper":
        return "--recipe spa-paper trains a head"
    return None


def _refuse(name: str, user: str) -> InputError:
    return InputError(f"{flag_of(name)} goes with {user}, and would do nothing here")


def recipe_values(recipe: str, *, method: str | None = None) -> dict[str, Any]:
    """Values of a recipe by option name, where they differ from the config classes', without those of other losses."""
    method = method or DEFAULT["method"]
    if method not in LOSSES:
        return {}
    batches = {"images_per_class": LOSSES[method].images_per_class} if LOSSES[method].images_per_class else {}
    if recipe == "spa-paper":
        return batches
    others = _LOSS_OPTIONS - set(option_names(options_of(method)))
    return {name: value for name, value in DEFAULT.items() if name not in others} | {"method": method} | batches


def _own_sizes(given: Mapping[str, Any], own: PreprocessConfig | None = None) -> dict[str, int]:
    """Resize and crop of the backbone where no others are given."""
    own = own_input(str(given.get("backbone", "")), crop=given.get("crop")) if own is None else own
    if given.get("view") == "whole":  # nothing is cropped off
        return {"resize": given.get("crop", own.crop), "crop": own.crop}
    return {"resize": own.resize, "crop": own.crop}


def resolve_input(backbone: str, own: PreprocessConfig | None = None, **given: Any) -> InputConfig:
    """`InputConfig` for a backbone, at its own size where none is given."""
    return InputConfig(**{**_own_sizes({"backbone": backbone, **given}, own), **given})


def absolute_file(file: Any) -> Any:
    """Absolute path of a file as text; names of weights stay as they are."""
    return str(Path(file).resolve()) if isinstance(file, str | Path) and file not in WEIGHTS else file


def unused_options(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Options without effect in this config, and what each goes with."""
    loss = config.loss
    if not config.copy_head:
        yield "copy_dim", "--copy-head"
    if not config.finetuning.trains:
        yield from ((name, "fine-tuning, not with --frozen") for name in _OF_FINETUNING)
    if not loss.trains:
        training = f"a method that trains, not with --method {loss.method}"
        yield from ((name, training) for name in _OF_TRAINING)
        if config.select == "auto":
            yield "select", training
        if config.holdout:
            yield "holdout", training
        return
    yield from loss.options.unused().items()
    if not LOSSES[loss.method].has_proxies:
        yield "proxy_lr", f"a loss with proxies, not with --method {loss.method}"
    if not config.needs_confidences:
        readers = "what reads confidences: --method spa, --targets posteriors, --init wccn or --min-confidence"
        yield from ((name, readers) for name in ("confidences", *_OF_MODULE))
    elif config.head.confidences != "module":
        yield from ((name, "--confidences module") for name in _OF_MODULE)
    elif config.head.confidence_val_share == 0:
        yield "confidence_patience", "--confidence-val-share above 0"
