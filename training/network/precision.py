"""Which precision trains a network faster here: a step of each is tried."""

from __future__ import annotations

import time

import torch

from training.network.model import NetworkModel

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SECONDS = 1.0  # for each, at least one step after the first
_MOST_STEPS = 20


def choose_precision(model: NetworkModel, images: torch.Tensor) -> str:
    """`float32` or `bfloat16`, whichever runs forward and backward faster on these images; weights stay as they are.

    On CPUs without native bfloat16 it is slower; with it, backward through depthwise convolutions may still be.

    Args:
        images: (B, H, W, 3) uint8, a batch as it will train.
    """
    before = model.precision
    try:
        seconds = {name: _time_a_step(model, images, dtype=dtype) for name, dtype in PRECISIONS.items()}
    finally:
        model.precision = before
        model.zero_grad(set_to_none=True)
    return min(seconds, key=lambda name: seconds[name])


def _time_a_step(model: NetworkModel, images: torch.Tensor, *, dtype: torch.dtype) -> float:
    model.precision = dtype
    _run_a_step(model, images)  # kernels are chosen and memory is taken the first time
    started, steps = time.perf_counter(), 0
    while steps == 0 or (time.perf_counter() - started < _SECONDS and steps < _MOST_STEPS):
        _run_a_step(model, images)
        steps += 1
    return (time.perf_counter() - started) / steps


def _run_a_step(model: NetworkModel, images: torch.Tensor) -> None:
    model(images).square().sum().backward()
    if images.device.type == "cuda":
        torch.cuda.synchronize()
