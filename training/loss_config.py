"""Which loss trains the embedding, and its hyper-parameters by the papers' symbols; nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from index.errors import InputError
from training.options import check_at_least, check_choices, option

TRAINED_METHODS = (
    "spa", "proxy-anchor", "adaptive-proxy-anchor", "proxy-nca", "multi-similarity", "procsim", "superloss",
)  # fmt: skip
LIBRARY_METHODS = (  # trained too, but by losses of pytorch-metric-learning
    "triplet", "contrastive", "lifted-structure", "circle", "soft-triple", "norm-softmax", "fast-ap",
    "cross-batch-memory",
)  # fmt: skip
UNTRAINED_METHODS = ("raw", "pca", "pca-whitened")
METHODS = (*TRAINED_METHODS, *LIBRARY_METHODS, *UNTRAINED_METHODS)
NEEDS_CONFIDENCES = frozenset({"spa"})
SUMS_OVER_SAMPLES = frozenset({"proxy-nca", "multi-similarity"})  # a sample's share in them can be weighed


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """Adaptive Proxy-Anchor: a margin that is learnt."""

    margins: str = option("single", "Learn one margin, or one a class.", choices=("single", "per-class"))
    margin_of: str = option(
        "proxy", "Whose class's margin a negative pair has.",
        choices=("proxy", "sample"),
    )  # fmt: skip
    kappa: float = option(1.0, "Weight of 1 / mean(margin), which keeps margins from 0.")

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 0, "kappa")


@dataclass(frozen=True, slots=True)
class NcaConfig:
    """Proxy-NCA."""

    nca_scale: float = option(8.0, "Scale of the squared distances; 0 takes 0.8 sqrt(C) of C classes, at most 32.")

    def __post_init__(self) -> None:
        check_at_least(self, 0, "nca_scale")


@dataclass(frozen=True, slots=True)
class MultiSimilarityConfig:
    """Multi-Similarity with its pair mining."""

    ms_alpha: float = option(2.0, "Scale of the positive pairs.")
    ms_beta: float = option(50.0, "Scale of the negative pairs.")
    ms_base: float = option(0.5, "Cosine that both scales turn around (the paper's lambda).")
    ms_epsilon: float = option(0.1, "Margin of the pair mining.")

    def __post_init__(self) -> None:
        check_at_least(self, 0, "ms_alpha", "ms_beta", strict=True)
        if not -1 <= self.ms_base <= 1:
            raise InputError(f"--ms-base must be in -1..1, got {self.ms_base}")
        check_at_least(self, 0, "ms_epsilon")


@dataclass(frozen=True, slots=True)
class ProcSimConfig:
    """ProcSim: a confidence a sample from its Proxy-NCA loss, on top of a sum over samples."""

    procsim_base: str = option(
        "multi-similarity",
        "The loss whose samples are weighted.",
        choices=("multi-similarity", "proxy-nca"),
    )
    procsim_threshold: str = option(
        "otsu", "What separates clean from noisy losses.", choices=("otsu", "global-average", "mixture")
    )
    procsim_lambda: float = option(0.1, "How slowly the confidence falls above the threshold.")
    procsim_scale: float = option(
        1.0, "Scale of the squared distances in the Proxy-NCA loss that finds the noisy samples."
    )
    procsim_proxy_lr: float = option(1e-3, "Learning rate of the proxies that find the noisy samples.")
    guidance: str | None = option(
        None, "Similarities of classes or images for the language-guidance term (.npz).", metavar="FILE"
    )
    omega: float = option(0.0, "Weight of the language-guidance term.")

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 0, "procsim_lambda", "procsim_scale", "procsim_proxy_lr", strict=True)
        check_at_least(self, 0, "omega")
        if (self.omega > 0) != (self.guidance is not None):
            raise InputError(
                "--omega above 0 and --guidance FILE go together, as the weight and the similarities of the "
                f"language-guidance term; got {self.omega:g} and {self.guidance!r}"
            )


@dataclass(frozen=True, slots=True)
class SuperLossConfig:
    """SuperLoss over the pairs of the contrastive loss."""

    superloss_lambda: float = option(1.0, "How little pairs differ in their confidence.")
    positive_margin: float = option(0.0, "Distance below which a positive pair costs nothing.")
    negative_margin: float = option(1.0, "Distance above which a negative pair costs nothing.")

    def __post_init__(self) -> None:
        check_at_least(self, 0, "superloss_lambda", strict=True)
        check_at_least(self, 0, "positive_margin", "negative_margin")


@dataclass(frozen=True, slots=True)
class LossConfig:
    """The loss of phase 2, and the options of Proxy-Anchor and Smooth Proxy-Anchor (SPA)."""

    method: str = option(
        "spa", f"What makes the embedding. A loss: {', '.join(TRAINED_METHODS)}. One of pytorch-metric-learning, which "
        f"the extra `losses` installs: {', '.join(LIBRARY_METHODS)}. Or no training: {', '.join(UNTRAINED_METHODS)}.",
        choices=METHODS, metavar="METHOD",
    )  # fmt: skip
    alpha: float = option(32.0, "Proxy-Anchor, SPA: scale of the cosines.")
    delta: float = option(0.1, "Proxy-Anchor, SPA: margin (adaptive: where it starts).")
    lambda_: float = option(0.1, "SPA: confidence above which a sample is positive for a class.", flag="--lambda")
    beta: float = option(100.0, "SPA: sharpness of the smoothing function around lambda.")
    sample_weights: str = option(
        "none", f"Weigh every sample's loss by the confidence in its label ({', '.join(sorted(SUMS_OVER_SAMPLES))}).",
        choices=("none", "confidence"),
    )  # fmt: skip
    negative_normalisation: str = option(
        "all", "Proxy-Anchor, SPA: divide the negative term by all proxies, or by those with a negative in the batch.",
        choices=("all", "present"),
    )  # fmt: skip
    adaptive: AdaptiveConfig = field(default_factory=AdaptiveConfig)
    nca: NcaConfig = field(default_factory=NcaConfig)
    multi_similarity: MultiSimilarityConfig = field(default_factory=MultiSimilarityConfig)
    procsim: ProcSimConfig = field(default_factory=ProcSimConfig)
    superloss: SuperLossConfig = field(default_factory=SuperLossConfig)

    def __post_init__(self) -> None:
        check_choices(self)
        if self.procsim.guidance is not None and self.method != "procsim":
            raise InputError(f"--guidance is for --method procsim, got --method {self.method}")
        if self.sample_weights == "confidence" and self.method not in SUMS_OVER_SAMPLES:
            raise InputError(
                f"--sample-weights confidence needs a loss that is a sum over samples "
                f"({', '.join(sorted(SUMS_OVER_SAMPLES))}), got --method {self.method}"
            )
        check_at_least(self, 0, "alpha", "beta", strict=True)
        check_at_least(self, 0, "delta", strict=self.method == "adaptive-proxy-anchor")
        if not 0 < self.lambda_ < 1:
            raise InputError(f"--lambda must be between 0 and 1, got {self.lambda_}")
