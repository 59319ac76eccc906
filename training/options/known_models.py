"""Public image models for `--backbone`, and the licences of their weights; loads nothing heavy.

Facts are from a library's registry or the model card that is named; figures of quality are those measured here alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.options.backbone_libraries import BUILTIN

_APACHE = "Apache-2.0"
YES, NO, CONDITIONS = "yes", "no", "with conditions"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A public model.

    Attributes:
        name: as of `--backbone`.
        width: features of an image.
        side: input size in pixels.
        parameters: millions, of the image tower without a classifier.
        licence: of the weights.
        commercial: whether the licence permits commercial use.
        source: model card that names the licence.
        has_text: whether `export --with-text` gives a text tower.
        measured: Recall@1 without training, from the page of results that it names.
    """

    name: str
    width: int
    side: int
    parameters: float
    licence: str
    commercial: str
    source: str
    good_for: str
    has_text: bool = False
    measured: str | None = None

    @property
    def megabytes(self) -> float:
        """Size of an exported file: in float32, or in int8 for the built-in one."""
        from index.model.builtin import BUILTIN_MODEL

        return BUILTIN_MODEL.stat().st_size / 1e6 if self.name == BUILTIN else 4 * self.parameters


KNOWN_MODELS = (
    KnownModel(
        *(BUILTIN, 1280, 225, 4.78, _APACHE, YES, "docs/builtin-model.md"),
        "a first look and copies, without download or torch",
    ),
    KnownModel(
        *("timm:mobilenetv4_conv_small.e2400_r224_in1k", 1280, 224, 2.49, _APACHE, YES),
        *("timm/mobilenetv4_conv_small.e2400_r224_in1k", "slow machines, millions of images"),
    ),
    KnownModel(
        *("timm:tf_efficientnet_lite2.in1k", 1280, 260, 4.81, _APACHE, YES, "timm/tf_efficientnet_lite2.in1k"),
        "CPUs, also in int8",
        measured="75.4 % on groceries, 51.1 % on cars (docs/results/backbones.md)",
    ),
    KnownModel(
        *("timm:tf_efficientnetv2_s.in21k_ft_in1k", 1280, 300, 20.18, _APACHE, YES),
        *("timm/tf_efficientnetv2_s.in21k_ft_in1k", "fine-tuning of a convolutional network"),
    ),
    KnownModel(
        *("timm:resnet50.a1_in1k", 2048, 224, 23.51, _APACHE, YES, "timm/resnet50.a1_in1k"), "comparisons with papers"
    ),
    KnownModel(
        *("timm:convnext_tiny.in12k_ft_in1k", 768, 224, 27.82, _APACHE, YES, "timm/convnext_tiny.in12k_ft_in1k"),
        "fine-tuning of a convolutional network",
    ),
    KnownModel(
        *("timm:vit_small_patch14_dinov2.lvd142m", 384, 518, 22.06, _APACHE, YES),
        *("timm/vit_small_patch14_dinov2.lvd142m", "fine-grained search without labels; faster with --crop 224"),
    ),
    KnownModel(
        *("timm:vit_base_patch14_dinov2.lvd142m", 768, 518, 86.58, _APACHE, YES),
        *("timm/vit_base_patch14_dinov2.lvd142m", "fine-grained search without labels, on a GPU"),
    ),
    KnownModel(
        *("timm:vit_small_patch16_dinov3.lvd1689m", 384, 256, 21.59, "DINOv3 License", CONDITIONS),
        *("timm/vit_small_patch16_dinov3.lvd1689m", "fine-grained search without labels"),
    ),
    KnownModel(
        *("timm:vit_base_patch16_dinov3.lvd1689m", 768, 256, 85.64, "DINOv3 License", CONDITIONS),
        *("timm/vit_base_patch16_dinov3.lvd1689m", "fine-grained search without labels, on a GPU"),
    ),
    KnownModel(
        *("open_clip:ViT-B-32/laion2b_s34b_b79k", 512, 224, 87.85, "MIT", YES),
        *("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "search by words", True),
    ),
    KnownModel(
        *("open_clip:ViT-B-16-SigLIP2/webli", 768, 224, 92.88, _APACHE, YES),
        *("timm/ViT-B-16-SigLIP2", "search by words in many languages", True),
    ),
    KnownModel(
        *("open_clip:PE-Core-B-16/meta", 1024, 224, 93.67, _APACHE, YES),
        *("timm/PE-Core-B-16", "search by words, and by images", True),
    ),
    KnownModel(
        *("open_clip:MobileCLIP2-S0/dfndr2b", 512, 256, 11.41, "Apple AMLR", NO),
        *("timm/MobileCLIP2-S0-OpenCLIP", "search by words on slow machines; research only", True),
    ),
)


def describe_licence(backbone: str, *, licence: str | None = None, card: str | None = None) -> str:
    """The licence of a backbone's weights in words: a known one, or what the library says, or that its card says it.

    >>> describe_licence("timm:other", licence="mit", card="timm/other")
    'licence mit (model card timm/other)'
    """
    known = next((one for one in KNOWN_MODELS if one.name == backbone), None)
    if known is not None:
        return f"licence {known.licence}, commercial use: {known.commercial} (model card {known.source})"
    where = f"model card {card}" if card else "its model card"
    return f"licence {licence} ({where})" if licence else f"licence not known here: see {where}"
