"""Where backbones come from, and how each wants its images; nothing here imports torch.

A name is `library/model`, or the model's alone for one of torchvision. Another library is one entry here, and one
module in `training/backbone` with a function `build_module` as that of `torchvision_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from index.errors import InputError

if TYPE_CHECKING:
    from index.images.preprocess import PreprocessConfig


@dataclass(frozen=True, slots=True)
class BackboneLibrary:
    """A library of backbones.

    Attributes:
        module: its module below `training.backbone`.
        preprocess: by a model's name: size, crop, interpolation, mean and deviation of the images it was trained on.
    """

    module: str
    preprocess: Callable[[str], PreprocessConfig]


def _prepare_as_the_papers(model: str) -> PreprocessConfig:
    from index.images.preprocess import PreprocessConfig  # with NumPy and Pillow, which options do without

    return PreprocessConfig(
        resize=256, crop=224, interpolation="bilinear", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )


LIBRARIES: Mapping[str, BackboneLibrary] = {
    "torchvision": BackboneLibrary("torchvision_models", _prepare_as_the_papers)
}


def find_library(name: str) -> tuple[BackboneLibrary, str]:
    """The library of a backbone, and the model's name there.

    Raises:
        InputError: no such library.
    """
    library, _, model = name.partition("/") if "/" in name else ("torchvision", "", name)
    if library not in LIBRARIES:
        raise InputError(f"--backbone {name!r} is of no known library; there is {', '.join(LIBRARIES)}")
    return LIBRARIES[library], model


def preprocess_for(
    backbone: str, *, resize: int | None = None, crop: int | None = None, view: str = "crop"
) -> PreprocessConfig:
    """How images are prepared for a backbone, at its own size unless another is given.

    Where both views are made of an image, that happens behind this preprocessing, which crops nothing then.

    Raises:
        InputError: the name is of no known library, or the sizes do not fit.
    """
    library, model = find_library(backbone)
    own = library.preprocess(model)
    crop = own.crop if crop is None else crop
    resize = own.resize if resize is None else resize
    return replace(own, resize=crop if view == "whole" else resize, crop=resize if view == "both" else crop)
