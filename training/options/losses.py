"""Registry of losses by method name, with their options named by the papers' symbols.

Nothing here imports torch, so that `retrieval train --help` is quick. A new loss is one file in `training/losses` and
one entry here; the fields of its options class become command-line options.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from index.config_fields import check_fields, option
from index.errors import InputError


@dataclass(frozen=True)
class LossOptions:
    """Options of a loss without any"""

    def __post_init__(self) -> None:
        check_fields(self)

    def unused(self) -> Mapping[str, str]:
        """Options without effect beside the values of others, and the value that each needs."""
        return {}


@dataclass(frozen=True)
class AnchorOptions(LossOptions):
    """Proxy-Anchor, Smooth Proxy-Anchor (SPA) and Adaptive Proxy-Anchor"""

    alpha: float = option(32.0, "Scale of the cosines.", above=0)
    head_alpha: float | None = option(
        None, "Scale of the cosines while a head trains on fixed features.", metavar="N", usual="--alpha", above=0
    )
    delta: float = option(0.1, "Margin (adaptive: its initial value).", at_least=0)


@dataclass(frozen=True)
class SpaOptions(AnchorOptions):
    """Smooth Proxy-Anchor (SPA)"""

    lambda_: float = option(0.1, "Confidence above which a sample is positive for a class.", above=0, below=1)
    beta: float = option(100.0, "Sharpness of the smoothing function around lambda.", above=0)


@dataclass(frozen=True)
class AdaptiveOptions(AnchorOptions):
    """Adaptive Proxy-Anchor"""

    margins: str = option("single", "Learn one margin, or one per class.", choices=("single", "per-class"))
    margin_of: str = option(
        "proxy", "Margin of a negative pair: that of the proxy's or of the sample's class.", choices=("proxy", "sample")
    )
    kappa: float = option(1.0, "Weight of 1 / mean(margin), which keeps margins from 0.", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta == 0:
            raise InputError(
                f"--delta must be greater than 0, as the initial value of a learnt margin, got {self.delta}"
            )

    def unused(self) -> Mapping[str, str]:
        return {"margin_of": "--margins per-class"} if self.margins == "single" else {}


@dataclass(frozen=True)
class NcaScale(LossOptions):
    """Proxy-NCA, alone or under PRISM"""

    nca_scale: float = option(
        8.0, "Scale of the squared distances; 0 takes 0.8 sqrt(C) of C classes, at most 32.", at_least=0
    )


@dataclass(frozen=True)
class MultiSimilarityOptions(LossOptions):
    """Multi-Similarity"""

    ms_alpha: float = option(2.0, "Scale of the positive pairs.", above=0)
    ms_beta: float = option(50.0, "Scale of the negative pairs.", above=0)
    ms_base: float = option(0.5, "Cosine that both scales turn around (the paper's lambda).", at_least=-1, at_most=1)
    ms_epsilon: float = option(0.1, "Margin of the pair mining.", at_least=0)


@dataclass(frozen=True)
class NcaOptions(NcaScale):
    """Proxy-NCA"""

    targets: str = option(
        "labels",
        "Targets of the softmax: the given labels, or the posteriors of the true class.",
        choices=("labels", "posteriors"),
    )


@dataclass(frozen=True)
class PrismOptions(NcaScale):
    """PRISM"""

    prism_base: str = option(
        "memory-contrastive", "Base loss of the selected images.", choices=("memory-contrastive", "proxy-nca")
    )
    prism_rate: float = option(
        0.3, "Share of wrong labels: about that share of the images is left out.", at_least=0, below=1
    )
    prism_memory: int = option(8192, "Embeddings of selected images in the memory.", metavar="N", at_least=1)
    prism_window: int = option(30, "Batches over which the threshold is averaged.", metavar="N", at_least=1)
    prism_warm_up: int = option(0, "First batches, in which all images train.", metavar="N", at_least=0)

    def unused(self) -> Mapping[str, str]:
        if self.prism_base == "proxy-nca":
            return {}
        return dict.fromkeys(("nca_scale", "proxy_lr"), "--prism-base proxy-nca")


@dataclass(frozen=True, slots=True)
class LossEntry:
    """One loss.

    Attributes:
        place: `module:Class`, the module below `training.losses`.
        has_proxies: --proxy-lr trains parameters of its own.
        needs_confidences: it reads the label confidences of phase 1.
        images_per_class: default number per class in a batch; 0 draws images at random.
    """

    place: str
    options: type[LossOptions] = LossOptions
    has_proxies: bool = False
    needs_confidences: bool = False
    images_per_class: int = 0


PAIRED = 4  # images per class in a batch, for losses over pairs
LOSSES: Mapping[str, LossEntry] = {
    "spa": LossEntry("smooth_proxy_anchor:SmoothProxyAnchor", SpaOptions, True, needs_confidences=True),
    "proxy-anchor": LossEntry("proxy_anchor:ProxyAnchor", AnchorOptions, True),
    "adaptive-proxy-anchor": LossEntry("adaptive_proxy_anchor:AdaptiveProxyAnchor", AdaptiveOptions, True),
    "proxy-nca": LossEntry("proxy_nca:ProxyNca", NcaOptions, True),
    "multi-similarity": LossEntry("multi_similarity:MultiSimilarity", MultiSimilarityOptions, images_per_class=PAIRED),
    "prism": LossEntry("prism:Prism", PrismOptions, True, images_per_class=PAIRED),
}
UNTRAINED_METHODS = ("raw", "pca", "pca-half-whitened", "pca-whitened")
WCCN = "wccn"  # fitted to the labels in closed form
RIVALS = (WCCN, *UNTRAINED_METHODS)
METHODS = (*LOSSES, *RIVALS)
NEEDS_CONFIDENCES = frozenset(name for name, entry in LOSSES.items() if entry.needs_confidences)


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Method"""

    method: str = option(
        "spa",
        "Loss of the head, such as proxy-anchor, or a method without training, such as pca: see docs/train.md.",
        choices=METHODS,
        metavar="METHOD",
    )
    options: Any = None
    """Options of the method, of its options class; None: its defaults."""

    def __post_init__(self) -> None:
        check_fields(self)
        kind = options_of(self.method)
        if self.options is None:
            object.__setattr__(self, "options", kind())
        if type(self.options) is not kind:
            raise InputError(f"--method {self.method} has {kind.__name__}, got {type(self.options).__name__}")

    @property
    def trains(self) -> bool:
        """Whether the method is a loss."""
        return self.method in LOSSES

    @property
    def of_head(self) -> "LossConfig":
        """The loss while a head trains on fixed features."""
        alpha = getattr(self.options, "head_alpha", None)
        return self if alpha is None else LossConfig(self.method, replace(self.options, alpha=alpha))

    @property
    def needs_confidences(self) -> bool:
        """Whether the loss reads label confidences of all classes."""
        return self.method in NEEDS_CONFIDENCES or getattr(self.options, "targets", "labels") == "posteriors"


def options_of(method: str) -> type[LossOptions]:
    """Options class of a method."""
    return LOSSES[method].options if method in LOSSES else LossOptions


def option_groups() -> list[type[LossOptions]]:
    """Classes that declare options of losses, each once; a class may inherit options."""
    kinds = [kind for entry in LOSSES.values() for kind in reversed(entry.options.__mro__)]
    return [kind for kind in dict.fromkeys(kinds) if issubclass(kind, LossOptions)]
