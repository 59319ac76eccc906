"""Vision towers of open_clip by name, and the images that they were trained on; open_clip is imported when asked.

A name is a model's, or `model/tag` with the tag of its pretrained weights: `ViT-B-32/laion2b_s34b_b79k`. Preprocessing
belongs to the weights; without a tag it is what all of a model's weights agree on, else open_clip's default.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from index.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from index.images.preprocess import PreprocessConfig


@dataclass(frozen=True, slots=True)
class OpenClipModel:
    """A model and its pretrained weights.

    Attributes:
        model: as open_clip names it.
        tag: of its weights; None where none was named.
        config: open_clip's own of the model: `embed_dim`, `vision_cfg`, …
        preprocess: open_clip's `PreprocessCfg` as a dictionary, with the model's `size`.
    """

    model: str
    tag: str | None
    config: dict[str, Any]
    preprocess: dict[str, Any]

    @property
    def side(self) -> int:
        """Pixels a side of the images that the tower was made for."""
        return int(self.config["vision_cfg"]["image_size"])


def find_open_clip_model(name: str) -> OpenClipModel:
    """What open_clip knows of a name.

    Raises:
        InputError: no such model or tag, or one for images that are not square.
        MissingDependencyError: open_clip is not installed.
    """
    if find_spec("open_clip") is None:
        purpose = f"--backbone open_clip:{name}"
        raise MissingDependencyError(package="open_clip_torch", extra="backbones", purpose=purpose)
    import open_clip

    model, _, tag = name.partition("/")
    config = open_clip.get_model_config(model) if model in open_clip.list_models() else None
    if config is None:
        close = ", ".join(difflib.get_close_matches(model, open_clip.list_models(), n=3)) or "ViT-B-32, ViT-L-14"
        raise InputError(
            f"--backbone open_clip:{name}: {model!r} is no model of open_clip; similar names: {close}"
        )
    tags = open_clip.list_pretrained_tags_by_model(model)
    if tag and not open_clip.is_pretrained_cfg(model, tag):
        raise InputError(
            f"--backbone open_clip:{name}: open_clip knows no weights {tag!r} of {model}; it has "
            f"{', '.join(tags) or 'none'}"
        )
    size = config["vision_cfg"].setdefault("image_size", 224)
    if not isinstance(size, int):
        raise InputError(
            f"--backbone open_clip:{name} takes images of {size}; images are square here: choose another"
        )
    known = [open_clip.get_pretrained_cfg(model, one) for one in ([tag] if tag else tags)]
    if tag and bool(known[0].get("quick_gelu")) != bool(config.get("quick_gelu")):
        other = model.removesuffix("-quickgelu") if config.get("quick_gelu") else f"{model}-quickgelu"
        raise InputError(
            f"--backbone open_clip:{name}: these weights were trained with another activation; choose "
            f"open_clip:{other}/{tag}"
        )
    return OpenClipModel(model, tag or None, config, _agree(known) | {"size": size})


def _agree(known: list[dict[str, Any]]) -> dict[str, Any]:
    """The preprocessing of all these weights where it is one, else open_clip's default."""
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    merged = [merge_preprocess_dict(PreprocessCfg(), weights) for weights in known]
    same = bool(merged) and all(one == merged[0] for one in merged)
    return dict(merged[0]) if same else asdict(PreprocessCfg())


def describe_open_clip_input(name: str) -> PreprocessConfig:
    """Size, interpolation, mean and deviation of the images that a tower was trained on; nothing is cropped off.

    Raises:
        InputError, MissingDependencyError: as of `find_open_clip_model`.
    """
    from index.images.preprocess import PreprocessConfig

    own = find_open_clip_model(name).preprocess
    return PreprocessConfig(
        resize=own["size"], crop=own["size"], interpolation=own["interpolation"], mean=tuple(own["mean"]),
        std=tuple(own["std"]),
    )  # fmt: skip
