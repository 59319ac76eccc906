"""Options of fine-tuning: which blocks of the backbone train after the head, for how long, and how."""

import re
from dataclasses import dataclass

from index.config_fields import check_fields, option
from index.errors import InputError

WHOLE = "all"
USUAL_BLOCKS = 13  # or all of a backbone with fewer
USUAL_EPOCHS = 10
USUAL_STEPS = 200  # or more epochs, of few images
USUAL_BUDGET = "10m"  # on a CPU, where that comes before the epochs' end
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class FinetuneConfig:
    """Fine-tuning"""

    frozen: bool = option(False, "Train the head alone; the backbone stays as it is. Seconds instead of minutes.")
    finetune: str | None = option(
        None,
        "How much of the backbone trains after the head: its last N blocks, or all.",
        metavar="last-N|all",
        usual=f"last-{USUAL_BLOCKS}, or all blocks of a backbone with fewer",
    )
    time_budget: str | None = option(
        None,
        "Most time of fine-tuning (90s, 30m, 1.5h), with decoding and evaluations. Features and holdout before "
        "it and --val after it take more.",
        metavar="TIME",
        usual=f"{USUAL_BUDGET} on a CPU; none with --epochs",
    )
    epochs: int | None = option(
        None,
        "Most epochs of fine-tuning.",
        metavar="N",
        usual=f"{USUAL_EPOCHS}, of few images those of {USUAL_STEPS} steps; any number with --time-budget",
        at_least=1,
    )
    batch_size: int = option(64, "Images per step of fine-tuning.", at_least=2)
    micro_batch_size: int | None = option(
        None,
        "Images per forward pass, for batches that do not fit into memory. The gradients are those of the whole "
        "batch (gradient caching), at the cost of one more forward pass.",
        metavar="N",
        at_least=1,
    )
    image_size: int | None = option(
        None,
        "Pixels per side of the training views in fine-tuning; evaluation and export use --crop. Default: 0.7 of "
        "--crop where the backbone takes images of any size, else --crop.",
        metavar="PIXELS",
        at_least=1,
    )
    lr: float = option(1e-3, "Learning rate of the last block.", above=0)
    layer_decay: float = option(
        0.9, "Learning rate of each block as a factor of the next block's.", at_least=0.01, at_most=1
    )
    finetune_head_lr: float = option(1e-3, "Learning rate of the head in fine-tuning.", above=0)
    backbone_l2_sp: float = option(
        1e-3,
        "Weight of the L2-SP penalty: the squared distance of the backbone's weights from their initial values.",
        at_least=0,
    )
    ema: float = option(0.98, "Decay of the exponential moving average of the weights.", at_least=0, at_most=0.9999)
    wise_ft_alpha: float | None = option(
        None,
        "Export weights between the initial (0) and the fine-tuned (1) ones (WiSE-FT). Higher values suit the classes "
        "that trained, lower ones others.",
        metavar="SHARE",
        usual="0.5; 0.25 or 0.75 where that leads on held-out images by a standard error, for the purpose of --for",
        above=0,
        at_most=1,
    )
    eval_every: int = option(
        2,
        "Evaluate on the held-out images every N epochs and after the last, and estimate label confidences again "
        "where the loss reads those of leave-one-out.",
        metavar="N",
        at_least=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.finetune is not None and not re.fullmatch(rf"{WHOLE}|last-[1-9]\d*", self.finetune):
            raise InputError(f"--finetune must be last-N with N of at least 1, or all; got {self.finetune!r}")
        if self.time_budget is not None and parse_time(self.time_budget) <= 0:
            raise InputError(
                f"--time-budget must be a time with its unit, such as 90s, 30m or 1.5h; got {self.time_budget!r}"
            )

    @property
    def trains(self) -> bool:
        """Whether the backbone trains."""
        return not self.frozen

    @property
    def last_blocks(self) -> int | None:
        """N of `last-N`, `USUAL_BLOCKS` by default; None for all."""
        if self.finetune is None:
            return USUAL_BLOCKS
        return None if self.finetune == WHOLE else int(self.finetune.removeprefix("last-"))

    @property
    def images_at_once(self) -> int:
        """Images per forward pass."""
        return min(self.batch_size, self.micro_batch_size or self.batch_size)

    def limits(self, images: int, *, on_cpu: bool) -> tuple[int | None, str | None]:
        """Most epochs and time: as given, or the defaults for this many training images where neither is given."""
        if self.epochs is not None or self.time_budget is not None:
            return self.epochs, self.time_budget
        epochs = max(USUAL_EPOCHS, -(-USUAL_STEPS // -(-images // self.batch_size)))
        return epochs, USUAL_BUDGET if on_cpu else None


def parse_time(text: str) -> float:
    """Seconds of a time such as 90s, 30m or 1.5h; 0 for other texts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    return float(match[1]) * _SECONDS[match[2]] if match else 0.0
