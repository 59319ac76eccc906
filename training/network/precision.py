"""Which precision trains a network faster here: steps of each are tried for a second."""

from __future__ import annotations

import time

import torch

from training.backbone.extract import resolve_precision
from training.network.model import NetworkModel

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SECONDS = 1.0  # for each, at least one step after the first
_MOST_STEPS = 20


def choose_precision(model: NetworkModel, images: torch.Tensor) -> str:
    """`float32` or `bfloat16`, whichever runs forward and backward faster on these images; weights stay as they are.

    Hardware that does not compute bfloat16 is not asked: it may take a hundred times as long. With it, backward through
    depthwise convolutions may still be slower.

    Args:
        images: (B, H, W, 3) uint8, views as they will train.
    """
    if resolve_precision("auto", images.device) == torch.float32:
        return "float32"
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
