"""Backbone libraries and their preprocessing; nothing here imports torch at first.

A backbone's name is `library:model`, a torchvision model's name alone, or `builtin` (`efficientnet_lite2`). A new
library is one entry here and one module in `training/backbone` with the functions `build_module` and `describe_input`,
as in `timm_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from index.config_fields import option
from index.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from index.images.preprocess import PreprocessConfig

DEFAULT_LIBRARY = "torchvision"
BUILTIN, BUILTIN_NETWORK = "builtin", "efficientnet_lite2"
"""Names of the built-in model: that which people type, and that of its network in runs and model files."""
ONNX, HUB = "onnx", "hf:"


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """What an ONNX file does not say of itself."""

    preprocessor: Path | None = option(
        None,
        "Of an ONNX --backbone: its preprocessor_config.json (transformers) or config.json (timm).",
        usual="the one beside it",
        metavar="FILE",
    )
    mean: str | None = option(
        None,
        "Of an ONNX --backbone: mean of the normalisation, for values in 0..1.",
        metavar="R,G,B",
        usual="the preprocessor file's",
    )
    std: str | None = option(
        None,
        "Of an ONNX --backbone: standard deviation of the normalisation.",
        metavar="R,G,B",
        usual="the preprocessor file's",
    )
    output: str | None = option(
        None, "Of an ONNX --backbone: the output that has the features.", metavar="NAME", usual="the pooled one"
    )
    tokens: str | None = option(
        None,
        "Of an ONNX --backbone that gives tokens: take the class token, or the mean of all.",
        choices=("class", "mean"),
        usual="class, where there is one",
    )

    def three(self, name: str) -> tuple[float, float, float] | None:
        """`mean` or `std` as numbers; None where it is not given."""
        text: str | None = getattr(self, name)
        if text is None:
            return None
        try:
            red, green, blue = (float(value) for value in text.split(","))
        except ValueError as error:
            raise InputError(f"--{name} must be three numbers such as 0.5,0.5,0.5, got {text!r}") from error
        return red, green, blue


@dataclass(frozen=True, slots=True)
class BackboneLibrary:
    """A library of backbones.

    Attributes:
        module: its module below `training.backbone`.
        preprocess: preprocessing by model name; None: by the module's `describe_input`.
        package: required package, by import name and by pip name.
        keeps_ratio: --crop without --resize scales the resize too.
    """

    module: str
    preprocess: Callable[[str], PreprocessConfig] | None = None
    package: tuple[str, str] | None = None
    keeps_ratio: bool = True

    def describe_input(self, model: str) -> PreprocessConfig:
        """Preprocessing that a model was trained with."""
        if self.preprocess is not None:
            return self.preprocess(model)
        found: PreprocessConfig = import_module(f"training.backbone.{self.module}").describe_input(model)
        return found


def _prepare_as_the_papers(model: str) -> PreprocessConfig:
    from index.images.preprocess import PreprocessConfig  # with NumPy and Pillow, which options do without

    return PreprocessConfig(
        resize=256, crop=224, interpolation="bilinear", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )


def _prepare_as_builtin(_: str) -> PreprocessConfig:
    """Its own size: it was trained on whole images and on parts of them."""
    from index.model.builtin import describe_builtin

    own = describe_builtin().preprocess
    return replace(own, resize=own.crop * 8 // 7)


LIBRARIES: Mapping[str, BackboneLibrary] = {
    DEFAULT_LIBRARY: BackboneLibrary("torchvision_models", _prepare_as_the_papers, keeps_ratio=False),
    "timm": BackboneLibrary("timm_models", package=("timm", "timm")),
    "open_clip": BackboneLibrary("open_clip_models", package=("open_clip", "open_clip_torch")),
    BUILTIN: BackboneLibrary("builtin_models", _prepare_as_builtin),
    ONNX: BackboneLibrary("onnx_models"),
}


def find_library(name: str) -> tuple[BackboneLibrary, str]:
    """Library of a backbone, and the model's name in it."""
    if name in (BUILTIN, BUILTIN_NETWORK):
        return LIBRARIES[BUILTIN], BUILTIN_NETWORK
    if is_onnx_file(name):
        return LIBRARIES[ONNX], name
    library, _, model = name.partition(":") if ":" in name else (DEFAULT_LIBRARY, "", name)
    if library not in LIBRARIES or library in (BUILTIN, ONNX):
        raise InputError(
            f"--backbone {name!r}: unknown library; expected one of {', '.join(LIBRARIES)} (for onnx FILE.onnx or "
            "hf:ORG/NAME)"
        )
    package = LIBRARIES[library].package
    if package is not None and find_spec(package[0]) is None:
        raise MissingDependencyError(package=package[1], extra="backbones", purpose=f"--backbone {name}")
    return LIBRARIES[library], model


def is_onnx_file(backbone: str) -> bool:
    """Whether a `--backbone` is an ONNX file, on disk or on the Hugging Face Hub, which has its weights inside."""
    return backbone.endswith(".onnx") or backbone.startswith(HUB)


def names_weights(backbone: str) -> bool:
    """Whether a `--backbone` says its weights: an ONNX file has them inside, `open_clip:NAME/TAG` has their tag."""
    return is_onnx_file(backbone) or (backbone.startswith("open_clip:") and "/" in backbone)


def preprocess_for(
    backbone: str,
    *,
    resize: int | None = None,
    crop: int | None = None,
    view: str = "crop",
    own: PreprocessConfig | None = None,
) -> PreprocessConfig:
    """Preprocessing for a backbone, at its own size unless another is given; `view` both crops later.

    `own` is the preprocessing that it was trained with, if the caller has it.
    """
    own = own_input(backbone, crop=crop) if own is None else own
    crop = own.crop if crop is None else crop
    resize = own.resize if resize is None else resize
    return replace(own, resize=crop if view == "whole" else resize, crop=resize if view == "both" else crop)


def own_input(backbone: str, *, crop: int | None = None) -> PreprocessConfig:
    """Preprocessing that a backbone was trained with, at another crop where one is given."""
    library, model = find_library(backbone)
    own = library.describe_input(model)
    if crop is None or not library.keeps_ratio or not isinstance(crop, int) or crop < 1:
        return own  # the config refuses an invalid size
    return replace(own, resize=max(crop, own.resize * crop // own.crop), crop=crop)
