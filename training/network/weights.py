"""The weights that training moves, beside each other: at the start, averaged, between the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from training.network.model import NetworkModel

Weights = Mapping[str, Tensor]
"""By name, as `NetworkModel.moving` has them."""


def copy_weights(model: NetworkModel) -> dict[str, Tensor]:
    """Those that the model has now."""
    return {name: tensor.clone() for name, tensor in model.moving().items()}


@torch.no_grad()
def load_weights(model: NetworkModel, weights: Weights) -> None:
    """Give the model these."""
    for name, tensor in model.moving().items():
        tensor.copy_(weights[name])


@contextmanager
def using_weights(model: NetworkModel, weights: Weights) -> Iterator[None]:
    """Let the model have these while the block runs."""
    own = copy_weights(model)
    load_weights(model, weights)
    try:
        yield
    finally:
        load_weights(model, own)


@torch.no_grad()
def average_weights(average: Weights, weights: Weights, *, keep: float, step: int) -> None:
    """Move the average towards the weights as they are: average = k average + (1 - k) weights.

    k is `keep`, in the first steps (t + 1) / (t + 10) where that is less: an average of few steps is not of the start.

    Args:
        step: t, from 0.
    """
    kept = min(keep, (step + 1) / (step + 10))
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            average[name].lerp_(tensor, 1 - kept)
        else:  # a count of batches
            average[name].copy_(tensor)


@torch.no_grad()
def interpolate_weights(start: Weights, trained: Weights, share: float) -> dict[str, Tensor]:
    """(1 - share) start + share trained (Wortsman et al. 2022): exactly the start at 0, the trained ones at 1."""
    return {
        name: torch.lerp(tensor, trained[name], share) if tensor.is_floating_point() else trained[name].clone()
        for name, tensor in start.items()
    }
