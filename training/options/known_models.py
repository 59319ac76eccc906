"""Public image models for `--backbone`, and the licences of their weights; loads nothing heavy.

Facts are from a library's registry or the model card that is named; figures of quality are those measured here alone.
"""

from __future__ import annotations

from typing import NamedTuple

from training.options.backbone_libraries import BUILTIN

COMMERCIAL = {"Apache-2.0": "yes", "MIT": "yes", "DINOv3 License": "with conditions", "Apple AMLR": "no"}
"""Whether a licence permits commercial use."""
MEASURED = {"timm:tf_efficientnet_lite2.in1k": "75.4 % on groceries, 51.1 % on cars (docs/results/backbones.md)"}
"""Recall@1 without training, from the page of results that is named."""
# name; width; input size in pixels; millions of parameters; licence; model card; good for
_TABLE = f"""
{BUILTIN}; 1280; 225; 4.78; Apache-2.0; docs/builtin-model.md; a first look and copies, without download or torch
timm:mobilenetv4_conv_small.e2400_r224_in1k; 1280; 224; 2.49; Apache-2.0; ; slow machines, millions of images
timm:tf_efficientnet_lite2.in1k; 1280; 260; 4.81; Apache-2.0; ; CPUs, also in int8
timm:tf_efficientnetv2_s.in21k_ft_in1k; 1280; 300; 20.18; Apache-2.0; ; fine-tuning of a convolutional network
timm:resnet50.a1_in1k; 2048; 224; 23.51; Apache-2.0; ; comparisons with papers
timm:convnext_tiny.in12k_ft_in1k; 768; 224; 27.82; Apache-2.0; ; fine-tuning of a convolutional network
timm:vit_small_patch14_dinov2.lvd142m; 384; 518; 22.06; Apache-2.0; ; fine-grained search; faster with --crop 224
timm:vit_base_patch14_dinov2.lvd142m; 768; 518; 86.58; Apache-2.0; ; fine-grained search, on a GPU
timm:vit_small_patch16_dinov3.lvd1689m; 384; 256; 21.59; DINOv3 License; ; fine-grained search
timm:vit_base_patch16_dinov3.lvd1689m; 768; 256; 85.64; DINOv3 License; ; fine-grained search, on a GPU
open_clip:ViT-B-32/laion2b_s34b_b79k; 512; 224; 87.85; MIT; laion/CLIP-ViT-B-32-laion2B-s34B-b79K; search by words
open_clip:ViT-B-16-SigLIP2/webli; 768; 224; 92.88; Apache-2.0; timm/ViT-B-16-SigLIP2; words in many languages
open_clip:PE-Core-B-16/meta; 1024; 224; 93.67; Apache-2.0; timm/PE-Core-B-16; search by words, and by images
open_clip:MobileCLIP2-S0/dfndr2b; 512; 256; 11.41; Apple AMLR; timm/MobileCLIP2-S0-OpenCLIP; words, in research only
"""


class KnownModel(NamedTuple):
    """A public model: `name` as of `--backbone`, and what its image tower has without a classifier.

    `parameters` are millions; `licence` is that of the weights, named by the model `card`; `has_text`: `export
    --with-text` gives a text tower; `megabytes` of an exported file, in float32, of the built-in one in int8.
    """

    name: str
    width: int
    side: int
    parameters: float
    licence: str
    card: str
    good_for: str
    has_text: bool
    megabytes: float


def list_known_models() -> list[KnownModel]:
    """All models of the list."""
    from index.model.builtin import BUILTIN_MODEL

    models = []
    for line in _TABLE.strip().splitlines():
        name, width, side, parameters, licence, card, good_for = line.split("; ", maxsplit=6)
        size = BUILTIN_MODEL.stat().st_size / 1e6 if name == BUILTIN else 4 * float(parameters)
        facts = licence, card or name.replace(":", "/"), good_for, name.startswith("open_clip:"), round(size, 1)
        models.append(KnownModel(name, int(width), int(side), float(parameters), *facts))
    return models


def describe_licence(backbone: str, *, licence: str | None = None, card: str | None = None) -> str:
    """The licence of a backbone's weights in words: a known one, or what the library says, or that its card says it.

    >>> describe_licence("timm:other", licence="mit", card="timm/other")
    'licence mit (model card timm/other)'
    """
    known = next((one for one in list_known_models() if one.name == backbone), None)
    if known is not None:
        return f"licence {known.licence}, commercial use: {COMMERCIAL[known.licence]} (model card {known.card})"
    where = f"model card {card}" if card else "its model card"
    return f"licence {licence} ({where})" if licence else f"licence not known here: see {where}"
