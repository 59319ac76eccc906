"""Options of fine-tuning: which blocks of the backbone train after the head, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from index.config_fields import check_fields, option
from index.errors import InputError
from training.options.losses import LOSSES, LossConfig, options_of

FROZEN, WHOLE = "none", "all"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
RECIPE_METHOD = "proxy-anchor"
"""Loss of fine-tuning where no method is named; chosen in docs/finetune.md."""


@dataclass(frozen=True, slots=True)
class FinetuneConfig:
    """Fine-tuning, with --finetune"""

    finetune: str = option(
        FROZEN, "Train the backbone too, after the head: none, its last N blocks, or all. With --time-budget: last-4.",
        metavar="none|last-N|all",
    )  # fmt: skip
    time_budget: str | None = option(
        None, "Fine-tune for this time (90s, 30m, 1.5h) instead of --epochs.",
        metavar="TIME",
    )  # fmt: skip
    finetune_method: str | None = option(
        None, "Loss of fine-tuning, weighted by label confidence where it can be. Default: --method where given, else "
        "proxy-anchor.", choices=tuple(LOSSES), metavar="METHOD",
    )  # fmt: skip
    epochs: int | None = option(10, "Most epochs of fine-tuning.", at_least=1)
    batch_size: int = option(32, "Images per step of fine-tuning.", at_least=2)
    micro_batch_size: int | None = option(
        None, "Images per forward pass, for batches that do not fit into memory. The gradients are those of the whole "
        "batch (gradient caching), at the cost of one more forward pass.", metavar="N", at_least=1,
    )  # fmt: skip
    image_size: int | None = option(
        None, "Pixels per side of the training views in fine-tuning; evaluation and export use --crop. Default: 0.7 of "
        "--crop where the backbone takes images of any size, else --crop.", metavar="PIXELS", at_least=1,
    )  # fmt: skip
    cached_views: int = option(
        0, "Random views per image that are drawn once and reused in all epochs, with their features from the frozen "
        "blocks: faster, and up to two points worse. 0 draws new views in every epoch.", metavar="N", at_least=0,
    )  # fmt: skip
    lr: float = option(1e-3, "Learning rate of the last block.", above=0)
    layer_decay: float = option(
        0.9, "Learning rate of each block as a factor of the next block's.", at_least=0.01, at_most=1
    )
    finetune_head_lr: float = option(1e-3, "Learning rate of the head in fine-tuning.", above=0)
    backbone_l2_sp: float = option(
        1e-3, "Weight of the L2-SP penalty: the squared distance of the backbone's weights from their initial values.",
        at_least=0,
    )  # fmt: skip
    ema: float = option(0.98, "Decay of the exponential moving average of the weights.", at_least=0, at_most=0.9999)
    wise_ft_alpha: float = option(
        0.5, "Export weights between the initial (0) and the fine-tuned (1) ones (WiSE-FT). 1 is best for the classes "
        "that trained, 0.5 for others too.", above=0, at_most=1,
    )  # fmt: skip
    eval_every: int = option(
        2, "Evaluate on the held-out images every N epochs and after the last, and estimate label confidences again "
        "where the loss reads those of leave-one-out.", metavar="N", at_least=1,
    )  # fmt: skip
    patience: int = option(
        5, "Stop after this many epochs without improvement on the held-out images, in the second half.", at_least=1
    )
    batch_norm: str = option(
        "frozen", "Batch norm statistics: the initial ones (frozen), or those of the batches (train).",
        choices=("frozen", "train"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        if not re.fullmatch(rf"{FROZEN}|{WHOLE}|last-[1-9]\d*", self.finetune):
            raise InputError(f"--finetune must be none, all, or last-N with N of at least 1, got {self.finetune!r}")
        if self.budget_s is None and self.epochs is None:
            raise InputError("--epochs must be a whole number without --time-budget, got None")
        if self.micro_batch_size is not None and self.batch_norm == "train":
            raise InputError(
                "--micro-batch-size needs --batch-norm frozen: statistics of a part are not those of the batch"
            )

    @property
    def trains(self) -> bool:
        """Whether the backbone trains."""
        return self.finetune != FROZEN

    @property
    def last_blocks(self) -> int | None:
        """N of `last-N`; None for all."""
        return None if self.finetune == WHOLE else int(self.finetune.removeprefix("last-"))

    @property
    def budget_s(self) -> float | None:
        """`time_budget` in seconds; None without one."""
        if self.time_budget is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", self.time_budget)
        seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
        if seconds <= 0:
            raise InputError(
                f"--time-budget must be a time with its unit, such as 90s, 30m or 1.5h; got {self.time_budget!r}"
            )
        return seconds

    def choose_loss(self, loss: LossConfig) -> LossConfig:
        """Loss of fine-tuning in a run with this method."""
        if self.finetune_method is None or self.finetune_method == loss.method:
            return loss
        kind = options_of(self.finetune_method)
        names = {own.name for own in fields(kind)}
        weighed: dict[str, Any] = {
            name: "confidence" for name in ("sample_weights", "positive_weights", "negative_weights") if name in names
        }
        return LossConfig(self.finetune_method, kind(**weighed))
