"""Rows and softmaxes by which losses are compared with loops over their equations."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize


def unit_rows(count: int, *, width: int = 4, seed: int = 0) -> Tensor:
    """(count, width) float64 rows of unit length."""
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, width, generator=generator, dtype=torch.float64))


def softmax(scores: list[float]) -> list[float]:
    """By its definition."""
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]
