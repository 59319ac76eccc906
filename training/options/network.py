"""Options of the network stage: what of the backbone trains after the head, and how."""

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
"""The loss of the network stage where no method is named: docs/train.md says what it was chosen on."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Phase 3, with --finetune: the network itself."""

    finetune: str = option(
        FROZEN, "What of the backbone trains: none, its last N blocks, or all. With --time-budget last-4 unless told "
        "otherwise.", metavar="none|last-N|all",
    )  # fmt: skip
    time_budget: str | None = option(
        None, "Train the network until this time is over (90s, 30m, 1.5h), in place of --epochs: the learning "
        "rates fall with the time.", metavar="TIME",
    )  # fmt: skip
    finetune_method: str | None = option(
        None, "The loss that the network trains with, weighed by confidence where it can be; without one that of "
        "--method where one is named, else proxy-anchor.", choices=tuple(LOSSES), metavar="METHOD",
    )  # fmt: skip
    epochs: int | None = option(10, "Most epochs of the network.", at_least=1)
    batch_size: int = option(32, "Images a step of the network.", at_least=2)
    micro_batch_size: int | None = option(
        None, "Images that pass the network at a time, where a whole batch takes too much memory: the loss still sees "
        "all of it, at the cost of one more forward pass.", metavar="N", at_least=1,
    )  # fmt: skip
    image_size: int | None = option(
        None, "Train the network on views of this many pixels a side, random windows scaled: cheaper "
        "than those of --crop, at which it is judged and ships. Without: 0.7 of --crop where the network takes images "
        "of any size, else --crop.", metavar="PIXELS", at_least=1,
    )  # fmt: skip
    cached_views: int = option(
        0, "Draw this many random views of an image once for all epochs, which take turns with them, and run the "
        "frozen blocks on them once, where keeping what those give takes less room than the decoded images: quicker, "
        "and up to two points worse. 0 draws new ones in every epoch.",
        metavar="N", at_least=0,
    )  # fmt: skip
    lr: float = option(1e-3, "Learning rate of the last block.", above=0)
    layer_decay: float = option(
        0.9, "Every block before it learns at this times the rate of the next.", at_least=0.01, at_most=1
    )
    finetune_head_lr: float = option(1e-3, "Learning rate of the head beside the network.", above=0)
    backbone_l2_sp: float = option(
        1e-3, "Weight of the squared distance of the network's weights from their start.", at_least=0
    )
    ema: float = option(0.98, "How much of the averaged weights each step keeps.", at_least=0, at_most=0.9999)
    wise_ft_alpha: float = option(
        0.5, "Ship weights this far of the way from their start to where they were trained to: what was learnt of the "
        "classes that trained is most at 1, what holds for unlike ones too about half way.", above=0, at_most=1,
    )  # fmt: skip
    eval_every: int = option(
        2, "Every N epochs, and after the last, judge the network by what is held out; and the labels again by its "
        "features, where the loss reads confidences of leave-one-out.", metavar="N", at_least=1,
    )  # fmt: skip
    patience: int = option(
        5,
        "Stop after this many epochs, in the second half of all, that find no more of what is held out.",
        at_least=1,
    )
    batch_norm: str = option(
        "frozen", "Statistics of batch norm: those of the weights it began with, or of the batches.",
        choices=("frozen", "train"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        if not re.fullmatch(rf"{FROZEN}|{WHOLE}|last-[1-9]\d*", self.finetune):
            raise InputError(
                f"--finetune must be none, all, or last-N with N of at least 1, got {self.finetune!r}"
            )
        if self.budget_s is None and self.epochs is None:
            raise InputError("--epochs must be a whole number without --time-budget, got None")
        if self.micro_batch_size is not None and self.batch_norm == "train":
            raise InputError(
                "--micro-batch-size needs --batch-norm frozen: statistics of a chunk are not those of its batch"
            )

    @property
    def trains(self) -> bool:
        """Whether there is a network stage."""
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
        """The loss of the network stage of a run with this method."""
        if self.finetune_method is None or self.finetune_method == loss.method:
            return loss
        kind = options_of(self.finetune_method)
        names = {own.name for own in fields(kind)}
        weighed: dict[str, Any] = {
            name: "confidence"
            for name in ("sample_weights", "positive_weights", "negative_weights")
            if name in names
        }
        return LossConfig(self.finetune_method, kind(**weighed))
