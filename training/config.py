"""Training options, one frozen dataclass a concern; the defaults are the paper's, `training.recipes` has others.

Nothing here imports torch, so that `retrieval train --help` is quick.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from index.errors import InputError
from training.loss_config import UNTRAINED_METHODS, LossConfig
from training.options import check_at_least, check_choices, option
from training.recipes import RECIPES

NOISE_KINDS = ("uniform", "bernoulli", "nearest-class", "semantic")
PROTOCOLS = ("folder", "tiny-imagenet", "webvision", "cub-200-2011", "cars-196", "sop", "in-shop")


@dataclass(frozen=True, slots=True)
class LabelNoise:
    """Which labels are made wrong: a kind of `NOISE_KINDS`, and the share of samples (0..1)."""

    kind: str
    rate: float


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which images take part, and with which labels."""

    protocol: str = option(
        "folder", "How DATA lies: class folders (or a CSV or Parquet file), or a benchmark as its download unpacks.",
        choices=PROTOCOLS,
    )  # fmt: skip
    max_per_class: int | None = option(None, "Use at most N images of a class, drawn by the seed.", metavar="N")
    label_noise: str | None = option(
        None,
        "Make labels wrong for an experiment: uniform:0.3 changes exactly 30 %, bernoulli:0.3 each with that chance, "
        "nearest-class:0.3 to one of the 5 most similar classes, semantic:0.3 to a sibling in --hierarchy.",
        metavar="KIND:P",
    )
    hierarchy: str | None = option(
        None,
        "For semantic noise: a CSV of class,parent, or the folder of WordNet's own data files.",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if self.max_per_class is not None and self.max_per_class < 2:
            raise InputError(f"--max-per-class must be at least 2, got {self.max_per_class}")
        semantic = self.noise is not None and self.noise.kind == "semantic"
        if semantic and self.hierarchy is None:
            raise InputError(f"--label-noise {self.label_noise} needs a class hierarchy: add --hierarchy FILE")
        if self.hierarchy is not None and not semantic:
            other = "no --label-noise" if self.label_noise is None else f"--label-noise {self.label_noise}"
            raise InputError(f"--hierarchy {self.hierarchy} is for --label-noise semantic:P, got {other}")

    @property
    def noise(self) -> LabelNoise | None:
        """`label_noise`, read; None without it."""
        if self.label_noise is None:
            return None
        match = re.fullmatch(r"([a-z-]+):(0(?:\.\d+)?|1(?:\.0+)?|\.\d+)", self.label_noise)
        if match is None or match[1] not in NOISE_KINDS:
            raise InputError(
                f"--label-noise must be KIND:P with KIND one of {', '.join(NOISE_KINDS)} and P in 0..1, "
                f"got {self.label_noise!r}"
            )
        return LabelNoise(match[1], float(match[2]))


@dataclass(frozen=True, slots=True)
class InputConfig:
    """How images reach the backbone."""

    resize: int = option(256, "Stretch images to this many pixels a side.", metavar="PIXELS")
    crop: int = option(
        224, "Crop to this many pixels a side: random in training, centred otherwise.", metavar="PIXELS"
    )
    features: str = option(
        "cached:1",
        "cached:V runs the backbone once over V fixed views (view 1 is the centre crop); live runs it in every epoch.",
        metavar="cached:V|live",
    )

    def __post_init__(self) -> None:
        check_at_least(self, 1, "resize", "crop")
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
    """Phase 1: how far each label is believed.

    By the confidence module, trained with binary cross-entropy on the given labels, or by a linear classifier that
    has seen all images but the one it judges (`training.leave_one_out`).
    """

    confidences: str = option(
        "module",
        "Who judges labels: the paper's confidence module, or a classifier that never saw the image it judges.",
        choices=("module", "leave-one-out"),
    )  # fmt: skip
    confidence_epochs: int = option(40, "Most epochs of phase 1.")
    confidence_hidden: int = option(512, "Width of the confidence module's hidden layer.")
    confidence_lr: float = option(1e-4, "Learning rate of the confidence module.")
    holdout: float = option(0.1, "Share of the training images that only watch phase 1, to stop it early.")
    patience: int = option(5, "Stop phase 1 after this many epochs without a better held-out loss.")
    min_confidence: float | None = option(
        None, "Leave images out of phase 2 whose confidence in their own label is below this, with any trained method "
        '(the "without noise" of the SPA paper: 0.1).',
        metavar="P",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "confidence_epochs", "confidence_hidden", "patience")
        check_at_least(self, 0, "confidence_lr", strict=True)
        if self.min_confidence is not None and not 0 < self.min_confidence < 1:
            raise InputError(f"--min-confidence must be between 0 and 1, got {self.min_confidence}")
        if not 0 <= self.holdout <= 0.5:
            raise InputError(f"--holdout must be in 0..0.5, got {self.holdout}")


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Phase 2: the embedding head and the proxies."""

    embedding_dim: int = option(64, "Width of the embedding.")
    start: str = option(
        "random",
        "The head's first weights: random, or PCA after whitening within classes, labels weighed by confidence.",
        choices=("random", "whitened"),
    )  # fmt: skip
    hold: float = option(0.0, "How firmly a whitened head is held near its start.")
    epochs: int = option(40, "Epochs of phase 2; its last weights are kept.")
    steps: int | None = option(None, "Steps of phase 2, instead of epochs.", metavar="N")
    batch_size: int = option(150, "Images a step, in both phases.")
    lr: float = option(1e-4, "Learning rate of the embedding head.")
    proxy_lr: float = option(1e-2, "Learning rate of the proxies.")
    weight_decay: float = option(1e-4, "AdamW's weight decay, in both phases.")

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "embedding_dim", "epochs")
        if self.steps is not None:
            check_at_least(self, 1, "steps")
        check_at_least(self, 0, "hold")
        if self.hold > 0 and self.start != "whitened":
            raise InputError(f"--hold keeps a whitened head near its start, got --start {self.start}")
        if self.embedding_dim > 8192:
            raise InputError(f"--embedding-dim must be at most 8192, got {self.embedding_dim}")
        check_at_least(self, 2, "batch_size")
        check_at_least(self, 0, "lr", "proxy_lr", strict=True)
        check_at_least(self, 0, "weight_decay")


@dataclass(frozen=True, slots=True)
class SelectConfig:
    """The trial: the recipe against untrained embeddings, on classes and images held out of the training data."""

    trial: bool = option(True, "Train on a part of the data first, and search the classes held out.")
    select: str = option(
        "trained",
        "Which embedding becomes the run's: the trained one, or auto: an untrained one of the same width where it "
        "finds more in the trial.",
        choices=("trained", "auto"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_choices(self)
        if self.select == "auto" and not self.trial:
            raise InputError("--select auto reads the trial: leave out --no-trial")


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
    selection: SelectConfig

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must be in 0..{2**32 - 1}, got {self.seed}")
        check_at_least(self, 1, "validate_every")
        if self.recipe not in RECIPES:
            raise InputError(f"--recipe must be one of {', '.join(RECIPES)}, got {self.recipe!r}")
        if self.loss.method in UNTRAINED_METHODS and self.confidence.min_confidence is not None:
            raise InputError(
                f"--min-confidence chooses images for training, got --method {self.loss.method}, which trains nothing"
            )
        if self.selection.select == "auto" and self.loss.method in UNTRAINED_METHODS:
            raise InputError(
                f"--select auto compares training with no training, got --method {self.loss.method}, which trains "
                "nothing"
            )
        if self.selection.select == "auto" and self.loss.procsim.guidance is not None:
            raise InputError(
                "--select auto reads the trial, and there is none with --guidance: leave one of them out"
            )
