"""Training options, one frozen dataclass a concern.

The defaults of these classes are the Smooth Proxy-Anchor paper's. Do not make a whole `TrainConfig` by hand:
`training.options.resolve` does, from the options that were given and a recipe for the others. Nothing here imports
torch, so that `retrieval train --help` is quick.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from index.config_fields import check_fields, option
from index.errors import InputError
from index.sources.table_rows import USUAL, TableColumns
from training.options.backbone_libraries import is_onnx_file
from training.options.finetuning import FinetuneConfig
from training.options.losses import LossConfig

NOISE_KINDS = ("uniform", "nearest-class", "small-cluster", "open-set")
VIEWS = ("crop", "whole", "both")
POOLINGS = ("own", "gem", "layers")
PURPOSES = ("known", "new", "both")
L2_SP_WEIGHTS = (0.02, 0.06, 0.2, 0.6)  # that the holdout evaluation compares
USUAL_L2_SP = 0.2  # unless the holdout evaluation finds clearly more with another
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
    """Data"""

    protocol: str = option(
        "folder",
        "Layout of DATA: class folders (or a CSV or Parquet file), or a benchmark as its download unpacks.",
        choices=PROTOCOLS,
    )
    max_per_class: int | None = option(
        None, "Use at most N images per class, drawn by the seed.", metavar="N", at_least=2
    )
    label_noise: str | None = option(
        None,
        "Simulate label noise: uniform:0.3 changes 30 % of the labels, nearest-class:0.3 to one of the 5 most "
        "similar classes; open-set:0.3 scatters whole classes, so that no label fits their images, and "
        "small-cluster:0.3 does so in groups of similar images.",
        metavar="KIND:P",
    )
    label_noise_seed: int | None = option(
        None,
        "Random seed of --label-noise: trainings of other --seed then have the same wrong labels.",
        metavar="N",
        usual="--seed",
        at_least=0,
        at_most=2**32 - 1,
    )
    path_column: str = option("path", "Column of image paths in a CSV or Parquet file.", metavar="NAME")
    label_column: str = option("label", "Column of labels in a CSV or Parquet file.", metavar="NAME")
    split_column: str | None = option(
        None,
        "Column of a table or a gallery with the split: train, and val (else test) in place of --val.",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.protocol != "folder" and (self.split_column is not None or self.columns != USUAL):
            raise InputError(f"--protocol {self.protocol} knows its own lists: leave out --*-column")
        if self.label_noise_seed is not None and self.label_noise is None:
            raise InputError("--label-noise-seed goes with --label-noise")
        _ = self.noise  # refuses an invalid one

    @property
    def columns(self) -> TableColumns:
        """Column names of a table."""
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
    """Images and features"""

    resize: int = option(
        256, "Resize images to this many pixels per side, before --crop.", metavar="PIXELS", at_least=1
    )
    crop: int = option(
        224,
        "Centre crop of this many pixels per side; with --view whole, the size of the whole image.",
        metavar="PIXELS",
        at_least=1,
    )
    view: str = option(
        "crop",
        "Part of an image that the backbone sees: the centre crop, the whole image, or both (twice the time, features "
        "averaged).",
        choices=VIEWS,
    )
    pooling: str = option(
        "own",
        "Pooling of feature maps: the backbone's own, generalised mean (gem), or several layers concatenated.",
        choices=POOLINGS,
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


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Label confidences (phase 1) and head (phase 2)"""

    confidences: str = option(
        "module",
        "Estimator of label confidences: the confidence module of the SPA paper, or a leave-one-out classifier.",
        choices=("module", "leave-one-out"),
    )
    confidence_epochs: int = option(40, "Most epochs of the confidence module.", at_least=1)
    confidence_hidden: int = option(512, "Width of the confidence module's hidden layer.", at_least=1)
    confidence_lr: float = option(1e-4, "Learning rate of the confidence module.", above=0)
    confidence_val_share: float = option(
        0.1,
        "Share of the training images held out for early stopping of the confidence module.",
        at_least=0,
        at_most=0.5,
    )
    confidence_patience: int = option(
        5, "Stop the confidence module after this many epochs without a better held-out loss.", at_least=1
    )
    min_confidence: float | None = option(
        None,
        "Leave out images whose label confidence is below this ('without noise' in the SPA paper: 0.1).",
        metavar="P",
        above=0,
        below=1,
    )
    embedding_dim: int | None = option(
        64, "Embedding dimension.", metavar="N", at_least=1, at_most=8192
    )  # None: `USUAL_DIM`, or as wide as images and backbone allow
    init: str = option(
        "random",
        "Initial weights of the head: random, or within-class whitening (WCCN) weighted by label confidence.",
        choices=("random", "wccn"),
    )
    l2_sp: float | None = option(
        0.0,
        "Weight of the L2-SP penalty, which keeps the head near its WCCN initialisation. "
        "The default recipe selects it by the holdout evaluation.",
        at_least=0,
    )
    head_epochs: int = option(40, "Epochs of the head.", at_least=1)
    head_steps: int | None = option(None, "Steps of the head, instead of --head-epochs.", metavar="N", at_least=1)
    head_batch_size: int = option(150, "Images per step of the head and of the confidence module.", at_least=2)
    images_per_class: int = option(
        0,
        "Images per class in a batch; 0 draws images at random. Losses over pairs default to 4.",
        metavar="N",
        at_least=0,
    )
    head_lr: float = option(1e-4, "Learning rate of the head.", above=0)
    proxy_lr: float = option(1e-2, "Learning rate of the proxies.", above=0)
    weight_decay: float = option(1e-4, "Weight decay of AdamW.", at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.l2_sp is not None and self.l2_sp > 0 and self.init != "wccn":
            raise InputError(f"--l2-sp goes with --init wccn, got --init {self.init}")
        if self.images_per_class > self.head_batch_size:
            raise InputError(
                f"--images-per-class ({self.images_per_class}) must not exceed "
                f"--head-batch-size ({self.head_batch_size})"
            )

    @property
    def width(self) -> int:
        """The embedding's width D, or the most that it can become."""
        return USUAL_DIM if self.embedding_dim is None else self.embedding_dim


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Run"""

    data: DataConfig
    input: InputConfig
    loss: LossConfig
    head: HeadConfig
    finetuning: FinetuneConfig
    weights: str = option(
        text="Backbone weights: pretrained (imagenet for torchvision), none (random), or a safetensors or torch "
        "state-dict file.",
        metavar="pretrained|imagenet|none|FILE",
        words=WEIGHTS,
    )
    backbone: str = option(
        "resnet50",
        "A torchvision model, timm:NAME, open_clip:NAME, FILE.onnx, hf:ORG/NAME (ONNX of the Hugging Face "
        "Hub), or builtin: the built-in model.",
    )
    seed: int = option(0, "Random seed.", at_least=0, at_most=2**32 - 1)
    holdout: bool = option(True, "Train on a part of the data first, and evaluate on classes and images held out.")
    select: str = option(
        "trained",
        "Select the embedding to export: the trained one, or auto: an untrained one where it is clearly better for the "
        "purpose (--for).",
        choices=("trained", "auto"),
    )
    for_: str = option(
        "both",
        "Purpose for which --select auto and fine-tuning choose: new photos of the training classes (known), photos of "
        "new classes, or both. For both, an untrained or frozen embedding is exported only where it is clearly better "
        "on one of the two, and training is not clearly better on the other. --val measures the classes that it shows, "
        "held-out photos measure the others. For new, the head of a fine-tuned network is within-class whitening.",
        choices=PURPOSES,
    )
    copy_head: bool = option(
        False,
        "Train a second output for copy detection, used by `search --by copy`: it finds cropped, mirrored, "
        "rotated, recoloured and re-encoded copies of an image.",
    )
    copy_dim: int = option(128, "Width of that output.", at_least=2)
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Options that were given, for a later training with the same ones."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.select == "auto" and not self.holdout:
            raise InputError("--select auto needs the holdout evaluation: leave out --no-holdout")
        if self.finetuning.trains and not self.loss.trains:
            raise InputError(
                f"fine-tuning needs a loss, which --method {self.loss.method} lacks: leave its options out"
            )
        if getattr(self.loss.options, "targets", "") == "posteriors" and self.head.confidences == "module":
            raise InputError(
                "--targets posteriors are estimated by --confidences leave-one-out, not by the module: give that, or "
                "--targets labels"
            )
        if is_onnx_file(self.backbone) and self.finetuning.trains:
            raise InputError(
                f"--backbone {self.backbone} cannot be fine-tuned, as an ONNX file is run as it is: add --frozen, or "
                "name a model of torchvision, timm or open_clip"
            )
        smaller = self.finetuning.image_size
        if smaller is not None and smaller > self.input.crop:
            raise InputError(f"--image-size must be at most --crop ({self.input.crop}), got {smaller}")

    @property
    def reestimates_confidences(self) -> bool:
        """Whether fine-tuning estimates confidences again, on the features of the network in training."""
        leaves_one_out = self.head.confidences == "leave-one-out"
        return self.finetuning.trains and self.loss.needs_confidences and leaves_one_out

    @property
    def needs_confidences(self) -> bool:
        """Whether a loss, the initialisation or the choice of images reads label confidences."""
        return self.loss.trains and (
            self.loss.needs_confidences or self.head.init == "wccn" or self.head.min_confidence is not None
        )

    def options(self) -> dict[str, Any]:
        """Values of all options by name, whatever their group."""
        groups = (self, self.data, self.input, self.loss, self.loss.options, self.head, self.finetuning)
        return {
            own.name: getattr(group, own.name) for group in groups for own in fields(group) if "help" in own.metadata
        }
