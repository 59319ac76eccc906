"""Training options, one frozen dataclass a concern.

The defaults of these classes are the Smooth Proxy-Anchor paper's. Nobody makes a whole `TrainConfig` by hand:
`training.options.resolve` does, from the options that were given and a recipe for the others. Nothing here imports
torch, so that `retrieval train --help` is quick.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from index.config_fields import check_fields, option
from index.errors import InputError
from index.sources.table_rows import USUAL, TableColumns
from training.options.backbone_libraries import BUILTIN
from training.options.losses import LossConfig
from training.options.network import NetworkConfig

NOISE_KINDS = ("uniform", "bernoulli", "nearest-class", "semantic")
VIEW_COSTS: Mapping[str, int] = MappingProxyType({"crop": 1, "whole": 1, "both": 2})
"""Passes of the backbone that an image takes, by view."""
VIEWS = tuple(VIEW_COSTS)
POOLINGS = ("own", "gem", "layers")
ONE_VIEW = "cached:1"
AUTO = "auto"  # of view and pooling: feature selection on a sample
L2_SP_WEIGHTS = (0.02, 0.06, 0.2, 0.6)  # that the holdout evaluation compares
USUAL_L2_SP = 0.06  # without a holdout evaluation
FIRM_L2_SP = 0.2  # that it selects unless another finds clearly more
WEIGHTS = ("pretrained", "imagenet", "none")
USUAL_DIM = 512  # of the embedding, where images and backbone allow it
PROTOCOLS = ("folder", "tiny-imagenet", "webvision", "cub-200-2011", "cars-196", "sop", "in-shop")


@dataclass(frozen=True, slots=True)
class LabelNoise:
    """Which labels are made wrong: a kind of `NOISE_KINDS`, and the share of samples (0..1)."""

    kind: str
    rate: float

    def __post_init__(self) -> None:
        if self.kind not in NOISE_KINDS or not 0 <= self.rate <= 1:
            raise InputError(
                f"label noise must be one of {', '.join(NOISE_KINDS)} with a rate in 0..1, "
                f"got {self.kind!r} with {self.rate}"
            )


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which images take part, and with which labels."""

    protocol: str = option(
        "folder", "How DATA lies: class folders (or a CSV or Parquet file), or a benchmark as its download unpacks.",
        choices=PROTOCOLS,
    )  # fmt: skip
    max_per_class: int | None = option(
        None, "Use at most N images of a class, drawn by the seed.", metavar="N", at_least=2
    )
    label_noise: str | None = option(
        None,
        "Make labels wrong for an experiment: uniform:0.3 changes exactly 30 %, bernoulli:0.3 each with that chance, "
        "nearest-class:0.3 to one of the 5 most similar classes, semantic:0.3 to a sibling in --hierarchy.",
        metavar="KIND:P",
    )
    hierarchy: str | None = option(None, "For semantic noise: a CSV of class,parent.", metavar="FILE", words=())
    path_column: str = option(
        "path", "The column of a CSV or Parquet file that says where an image is.", metavar="NAME"
    )
    label_column: str = option(
        "label", "The column of a CSV or Parquet file that says what an image shows.", metavar="NAME"
    )
    split_column: str | None = option(
        None,
        "The column of a CSV or Parquet file that says which images train (train) and which validate (val, else test), "
        "as --val would.",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.protocol != "folder" and (self.split_column is not None or self.columns != USUAL):
            raise InputError(f"--protocol {self.protocol} knows its own lists: leave out --*-column")
        semantic = self.noise is not None and self.noise.kind == "semantic"
        if semantic and self.hierarchy is None:
            raise InputError(f"--label-noise {self.label_noise} needs a class hierarchy: add --hierarchy FILE")
        if self.hierarchy is not None and not semantic:
            other = "no --label-noise" if self.label_noise is None else f"--label-noise {self.label_noise}"
            raise InputError(f"--hierarchy {self.hierarchy} goes with --label-noise semantic:P, got {other}")

    @property
    def columns(self) -> TableColumns:
        """What a table's columns are called."""
        return TableColumns(path=self.path_column, label=self.label_column)

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

    resize: int = option(256, "Stretch images to this many pixels a side.", metavar="PIXELS", at_least=1)
    crop: int = option(
        224, "Crop to this many pixels a side, in the middle but for random views; of --view whole it is the size of "
        "the whole image.", metavar="PIXELS", at_least=1,
    )  # fmt: skip
    view: str = option(
        "crop",
        "What the backbone sees: the crop, the whole image at the crop's size, or both, their features averaged, at "
        "twice the time; auto tries them on a sample.",
        choices=(*VIEWS, AUTO),
    )  # fmt: skip
    pooling: str = option(
        "own",
        "From feature maps to features: the architecture's own pooling, generalised mean, or several layers of the "
        "same pass (wider features); auto tries them on a sample.",
        choices=(*POOLINGS, AUTO),
    )  # fmt: skip
    embedding_cost: int = option(
        1, "The most that --view auto may let an image cost, in passes of the backbone, here and in every gallery: 1 "
        "for the crop or the whole image, 2 for both of them too.", metavar="PASSES", at_least=1,
    )  # fmt: skip
    features: str = option(
        ONE_VIEW,
        "cached:V runs the backbone once over V fixed views (view 1 is the centre crop); live runs it in every epoch.",
        metavar="cached:V|live",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.view == "whole" and self.resize != self.crop:
            raise InputError(
                f"--view whole stretches the whole image to --crop ({self.crop}) and crops nothing off, got --resize "
                f"{self.resize}: leave --resize out"
            )
        if self.crop > self.resize:
            raise InputError(f"--crop ({self.crop}) must not exceed --resize ({self.resize})")
        if self.view == "both" and self.resize == self.crop:
            raise InputError(
                f"--view both takes a crop and the whole image, which are the same where --resize is --crop "
                f"({self.crop}): raise --resize, or choose --view whole"
            )
        if self.features != "live" and not re.fullmatch(r"cached:[1-9]\d*", self.features):
            raise InputError(f"--features must be cached:V with V of at least 1, or live; got {self.features!r}")
        if self.view != "crop" and self.fixed_views != 1:
            raise InputError(
                f"--features {self.features} takes random crops, which go with --view crop, not with --view {self.view}"
            )

    @property
    def fixed_views(self) -> int | None:
        """Views a cached image has; None for live."""
        return None if self.features == "live" else int(self.features.partition(":")[2])

    @property
    def is_open(self) -> bool:
        """Whether feature selection has yet to choose the view or the pooling."""
        return AUTO in (self.view, self.pooling)

    @property
    def allowed_views(self) -> tuple[str, ...]:
        """The views to choose from: what is given, or those that differ and that `embedding_cost` allows."""
        if self.view != AUTO:
            return (self.view,)
        if self.resize == self.crop:  # the crop is the whole image
            return ("crop",)
        return tuple(view for view, cost in VIEW_COSTS.items() if cost <= self.embedding_cost)

    def settle(self, *, view: str, pooling: str) -> InputConfig:
        """The same with a view and a pooling of the given ones; the whole image is not larger than the crop."""
        return replace(self, view=view, pooling=pooling, resize=self.crop if view == "whole" else self.resize)


@dataclass(frozen=True, slots=True)
class ConfidenceConfig:
    """Phase 1: how far each label is believed.

    By the confidence module, trained with binary cross-entropy on the given labels, or by a linear classifier that
    has seen all images but the one it judges (`index.labels.leave_one_out`).
    """

    confidences: str = option(
        "module",
        "Who judges labels: the paper's confidence module, or a classifier that never saw the image it judges.",
        choices=("module", "leave-one-out"),
    )  # fmt: skip
    confidence_epochs: int = option(40, "Most epochs of phase 1.", at_least=1)
    confidence_hidden: int = option(512, "Width of the confidence module's hidden layer.", at_least=1)
    confidence_lr: float = option(1e-4, "Learning rate of the confidence module.", above=0)
    confidence_val_share: float = option(
        0.1, "Share of the training images that only watch phase 1, to stop it early.", at_least=0, at_most=0.5
    )
    confidence_patience: int = option(
        5, "Stop phase 1 after this many epochs without a better held-out loss.", at_least=1
    )
    min_confidence: float | None = option(
        None, "Leave images out of phase 2 whose confidence in their own label is below this, with any trained method "
        '(the "without noise" of the SPA paper: 0.1).',
        metavar="P", above=0, below=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Phase 2: the embedding head and the proxies."""

    embedding_dim: int | None = option(
        64, "Width of the embedding.", metavar="N", at_least=1, at_most=8192
    )  # None: `USUAL_DIM`, or as wide as images and backbone allow
    init: str = option(
        "random",
        "Initial weights of the head: random, or within-class whitening (WCCN) weighted by label confidence.",
        choices=("random", "wccn"),
    )  # fmt: skip
    l2_sp: float | None = option(
        0.0,
        "Weight of the L2-SP penalty, which keeps the head near its WCCN initialisation. "
        "The default recipe selects it by the holdout evaluation.",
        at_least=0,
    )
    head_epochs: int = option(40, "Epochs of phase 2; its last weights are kept.", at_least=1)
    head_steps: int | None = option(None, "Steps of phase 2, instead of epochs.", metavar="N", at_least=1)
    head_batch_size: int = option(150, "Images a step, in both phases.", at_least=2)
    images_per_class: int = option(
        0, "Images of one class that a batch has together; 0 draws images at random. Losses over pairs take 4 unless "
        "told otherwise.", metavar="N", at_least=0,
    )  # fmt: skip
    head_lr: float = option(1e-4, "Learning rate of the embedding head.", above=0)
    proxy_lr: float = option(1e-2, "Learning rate of the proxies.", above=0)
    weight_decay: float = option(1e-4, "AdamW's weight decay, in both phases.", at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.l2_sp is not None and self.l2_sp > 0 and self.init != "wccn":
            raise InputError(f"--l2-sp goes with --init wccn, got --init {self.init}")
        if self.images_per_class > self.head_batch_size:
            raise InputError(
                f"--images-per-class ({self.images_per_class}) must not exceed "
                f"--head-batch-size ({self.head_batch_size})"
            )

    def wide(self, spanned: int) -> EmbeddingConfig:
        """The same with a width: the given one, else `USUAL_DIM` or the directions that features span."""
        if self.embedding_dim is not None:
            return self
        return replace(self, embedding_dim=max(1, min(USUAL_DIM, spanned)))

    @property
    def width(self) -> int:
        """The embedding's width D, or the most that it can become."""
        return USUAL_DIM if self.embedding_dim is None else self.embedding_dim

    @property
    def penalty(self) -> float:
        """Weight of the L2-SP penalty: `l2_sp`, or the usual one where no holdout evaluation chose it."""
        return USUAL_L2_SP if self.l2_sp is None else self.l2_sp


@dataclass(frozen=True, slots=True)
class SelectConfig:
    """Holdout evaluation: training against untrained embeddings, on classes and images held out"""

    holdout: bool = option(
        True, "Train on a part of the data first and evaluate on the classes and images held out."
    )
    select: str = option(
        "trained",
        "Select the embedding to export: the trained one, or auto: an untrained one of the same width where the "
        "holdout evaluation finds it clearly better.",
        choices=("trained", "auto"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        if self.select == "auto" and not self.holdout:
            raise InputError("--select auto needs the holdout evaluation: leave out --no-holdout")


@dataclass(frozen=True, slots=True)
class CopyConfig:
    """Copy detection: a second output of the model"""

    copy_head: bool = option(
        False, "Train a second output for copy detection, used by `search --by copy`: it finds cropped, mirrored, "
        "turned, recoloured and re-encoded copies of an image.",
    )  # fmt: skip
    copy_dim: int = option(128, "Width of that output.", at_least=2)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The run."""

    loss: LossConfig
    embedding: EmbeddingConfig
    confidence: ConfidenceConfig
    selection: SelectConfig
    data: DataConfig
    input: InputConfig
    weights: str = option(
        text="Backbone weights: pretrained (fetched by its library), none (random), a safetensors or torch state-dict "
        "file; imagenet is pretrained for torchvision.", metavar="pretrained|none|FILE", words=WEIGHTS,
    )  # fmt: skip
    backbone: str = option(
        "resnet50", "Any torchvision classification model, timm:NAME or open_clip:NAME; builtin is the network of "
        "the built-in model, the default where no --weights are given.",
    )  # fmt: skip
    seed: int = option(0, "Seed of everything random.", at_least=0, at_most=2**32 - 1)
    head_eval_every: int = option(10, "Recall@K in validation this often.", metavar="EPOCHS", at_least=1)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    copy: CopyConfig = field(default_factory=CopyConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.selection.select == "auto" and getattr(self.loss.options, "guidance", None) is not None:
            raise InputError(
                "--select auto needs the holdout evaluation, which --guidance does not allow: leave one of them out"
            )
        if self.input.is_open and not self.selection.holdout:
            name = "view" if self.input.view == AUTO else "pooling"
            raise InputError(
                f"--{name} auto is selected on a part of the data, as in the holdout evaluation: leave out --no-holdout"
            )
        if self.network.trains and not self.network_loss.trains:
            raise InputError(
                f"--finetune trains with a loss, and --method {self.loss.method} is none: name a --finetune-method"
            )

        if self.backbone == BUILTIN and self.network.trains and self.network.batch_norm == "train":
            raise InputError("--batch-norm train: --backbone builtin has none left, it is in the convolutions")
        smaller = self.network.image_size
        if smaller is not None and smaller > self.input.crop:
            raise InputError(f"--image-size must be at most --crop ({self.input.crop}), got {smaller}")

    @property
    def network_loss(self) -> LossConfig:
        """The loss of the network stage."""
        return self.network.choose_loss(self.loss)

    @property
    def reestimates_confidences(self) -> bool:
        """Whether fine-tuning estimates confidences again, on the features of the network in training."""
        reads = self.network_loss.needs_confidences or self.network_loss.weighs_samples
        return self.network.trains and reads and self.confidence.confidences == "leave-one-out"

    @property
    def needs_confidences(self) -> bool:
        """Whether a loss, the initialisation or the choice of images reads label confidences."""
        losses = [self.loss] if self.loss.trains else []
        losses += [self.network_loss] if self.network.trains else []
        return bool(losses) and (
            any(loss.needs_confidences or loss.weighs_samples for loss in losses)
            or (self.loss.trains and self.embedding.init == "wccn")
            or self.confidence.min_confidence is not None
        )
