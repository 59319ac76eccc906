"""The optimizer of the network stage: rates by block, warm-up and cosine, held back and clipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.losses.interface import MetricLoss
from training.network.model import NetworkModel
from training.options.network import NetworkConfig

WARM_UP = 0.1  # of all steps
MAX_NORM = 5.0  # of the gradient; that of Proxy-Anchor is some 1 to 10


def make_optimizer(
    model: NetworkModel, loss: MetricLoss, config: NetworkConfig, *, proxy_lr: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with a group a block, one of the head, and those of the loss; `peak` is the rate that each shall reach.

    The last block learns at `network_lr`, each before it at `network_decay` times the next one's. The network is not
    decayed: it is held near its start instead.
    """
    levels = reversed(model.levels)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "lr": config.network_lr * config.network_decay**depth, "weight_decay": 0.0}
        for depth, parameters in enumerate(levels)
    ]
    head = list(model.head.parameters())
    groups.append({"params": head, "lr": config.network_head_lr, "weight_decay": weight_decay})
    groups += loss.parameter_groups(proxy_lr=proxy_lr, weight_decay=weight_decay)
    for group in groups:
        group["peak"] = group["lr"]
    return torch.optim.AdamW(groups, fused=True)


def set_rates(optimizer: torch.optim.Optimizer, *, step: int, steps: int) -> None:
    """The rates of a step, from 0: rising to the peak over the first tenth, then falling to 0 along a cosine."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * rate_share(step, steps)


def rate_share(step: int, steps: int) -> float:
    """The share of its peak that a rate has in a step, from 0."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up + 1) / (steps - warm_up + 1)))


class StartPenalty:
    """weight * the squared distance of a network's weights from where they began, by its gradient alone.

    Args:
        parameters: as they begin.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, weight: float, start: Sequence[Tensor]) -> None:
        self._parameters, self._weight, self._start = parameters, weight, start

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add 2 weight (p - start) to every gradient there is; half precision plays no part."""
        if self._weight == 0:
            return
        for parameter, start in zip(self._parameters, self._start, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=2 * self._weight)
