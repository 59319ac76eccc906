"""Training options, one frozen dataclass a concern; the defaults are the paper's recipe.

Nothing here imports torch, so that `retrieval train --help` is quick.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from index.errors import InputError

METHODS = ("spa", "proxy-anchor")
RECIPES = ("paper",)


def _option(default: Any, text: str, **meta: Any) -> Any:
    return field(default=default, metadata={"help": text, **meta})


def _check_at_least(config: Any, bound: float, *names: str, strict: bool = False) -> None:
    for name in names:
        value = getattr(config, name)
        if not (value > bound if strict else value >= bound) or math.isinf(value):
            relation = "greater than" if strict else "at least"
            flag = "--" + name.rstrip("_").replace("_", "-")
            raise InputError(f"{flag} must be {relation} {bound:g}, got {value}")


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which images take part, and with which labels."""

    max_per_class: int | None = _option(None, "Use at most N images of a class, drawn by the seed.", metavar="N")
    label_noise: str | None = _option(
        None, "Make labels wrong for an experiment: uniform:0.3 changes exactly 30 % of them.", metavar="KIND:P"
    )

    def __post_init__(self) -> None:
        if self.max_per_class is not None and self.max_per_class < 2:
            raise InputError(f"--max-per-class must be at least 2, got {self.max_per_class}")
        if self.label_noise is not None:
            self.noise_rate  # noqa: B018  (parsing is the check)

    @property
    def noise_rate(self) -> float:
        """The share of labels made wrong; 0 without `label_noise`."""
        if self.label_noise is None:
            return 0.0
        match = re.fullmatch(r"uniform:(0(?:\.\d+)?|1(?:\.0+)?|\.\d+)", self.label_noise)
        if match is None:
            raise InputError(f"--label-noise must be uniform:P with P in 0..1, got {self.label_noise!r}")
        return float(match[1])


@dataclass(frozen=True, slots=True)
class InputConfig:
    """How images reach the backbone."""

    resize: int = _option(256, "Stretch images to this many pixels a side.", metavar="PIXELS")
    crop: int = _option(
        224, "Crop to this many pixels a side: random in training, centred otherwise.", metavar="PIXELS"
    )
    features: str = _option(
        "cached:1",
        "cached:V runs the backbone once over V fixed views (view 1 is the centre crop); live runs it in every epoch.",
        metavar="cached:V|live",
    )

    def __post_init__(self) -> None:
        _check_at_least(self, 1, "resize", "crop")
        if self.crop > self.resize:
            raise InputError(f"--crop ({self.crop}) must not exceed --resize ({self.resize})")
        if self.features != "live" and not re.fullmatch(r"cached:[1-9]\d*", self.features):
            raise InputError(f"--features must be cached:V with V of at least 1, or live; got {self.features!r}")

    @property
    def cached_views(self) -> int | None:
        """Views a cached image has; None for live."""
        return None if self.features == "live" else int(self.features.partition(":")[2])


@dataclass(frozen=True, slots=True)
class ConfidenceConfig:
    """Phase 1: the confidence module, trained with binary cross-entropy on the given labels."""

    confidence_epochs: int = _option(40, "Most epochs of phase 1.")
    confidence_hidden: int = _option(512, "Width of the confidence module's hidden layer.")
    confidence_lr: float = _option(1e-4, "Learning rate of the confidence module.")
    holdout: float = _option(0.1, "Share of the training images that only watch phase 1, to stop it early.")
    patience: int = _option(5, "Stop phase 1 after this many epochs without a better held-out loss.")

    def __post_init__(self) -> None:
        _check_at_least(self, 1, "confidence_epochs", "confidence_hidden", "patience")
        _check_at_least(self, 0, "confidence_lr", strict=True)
        if not 0 <= self.holdout <= 0.5:
            raise InputError(f"--holdout must be in 0..0.5, got {self.holdout}")


@dataclass(frozen=True, slots=True)
class LossConfig:
    """The loss of phase 2 (papers' symbols)."""

    method: str = _option("spa", "Smooth Proxy-Anchor, or the Proxy-Anchor baseline.", choices=METHODS)
    alpha: float = _option(32.0, "Scale of the cosines.")
    delta: float = _option(0.1, "Margin.")
    lambda_: float = _option(0.1, "Confidence above which a sample is positive for a class.", flag="--lambda")
    beta: float = _option(100.0, "Sharpness of the smoothing function around lambda.")
    negative_normalisation: str = _option(
        "all", "Divide the negative term by all proxies, or by those with a negative in the batch.",
        choices=("all", "present"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check_at_least(self, 0, "alpha", "beta", strict=True)
        _check_at_least(self, 0, "delta")
        if not 0 < self.lambda_ < 1:
            raise InputError(f"--lambda must be between 0 and 1, got {self.lambda_}")


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Phase 2: the embedding head and the proxies."""

    embedding_dim: int = _option(64, "Width of the embedding.")
    epochs: int = _option(40, "Epochs of phase 2; its last weights are kept.")
    batch_size: int = _option(150, "Images a step, in both phases.")
    lr: float = _option(1e-4, "Learning rate of the embedding head.")
    proxy_lr: float = _option(1e-2, "Learning rate of the proxies.")
    weight_decay: float = _option(1e-4, "AdamW's weight decay, in both phases.")

    def __post_init__(self) -> None:
        _check_at_least(self, 1, "embedding_dim", "epochs")
        if self.embedding_dim > 8192:
            raise InputError(f"--embedding-dim must be at most 8192, got {self.embedding_dim}")
        _check_at_least(self, 2, "batch_size")
        _check_at_least(self, 0, "lr", "proxy_lr", strict=True)
        _check_at_least(self, 0, "weight_decay")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A whole run; written to the run folder as it was resolved."""

    backbone: str
    weights: str
    seed: int
    recipe: str
    validate_every: int
    data: DataConfig
    input: InputConfig
    confidence: ConfidenceConfig
    loss: LossConfig
    embedding: EmbeddingConfig

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must be in 0..{2**32 - 1}, got {self.seed}")
        _check_at_least(self, 1, "validate_every")
        if self.recipe not in RECIPES:
            raise InputError(f"--recipe must be one of {', '.join(RECIPES)}, got {self.recipe!r}")
