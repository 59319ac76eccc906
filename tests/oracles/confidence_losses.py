"""ProcSim and what it is made of, as loops over their printed equations.

The losses run on 0-d float64 tensors, whose gradient is autograd's; confidences are plain floats, so constants.
"""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor


def lambert_w(x: float) -> float:
    """Of x >= 0, by Newton's method in fifty digits, from above, where w exp(w) is convex."""
    with localcontext() as context:
        context.prec = 50
        wanted = Decimal(x)
        w = (1 + wanted).ln()
        for _ in range(2000):
            step = (w - wanted / w.exp()) / (1 + w)
            w -= step
            if abs(step) < Decimal("1e-40") * max(abs(w), Decimal("1e-40")):
                break
        return float(w)


def otsu_candidates(losses: Sequence[float]) -> list[tuple[Fraction, Fraction]]:
    """(threshold, cost) of every midpoint of Algorithm 1, in exact arithmetic."""
    exact = sorted(Fraction(loss) for loss in losses)
    size = len(exact)
    candidates = []
    for i in range(2, size - 1):  # the paper's i, which counts from 1: 2..B-2
        tau = (exact[i - 1] + exact[i]) / 2
        low, high = [v for v in exact if v <= tau], [v for v in exact if v >= tau]
        cost = (len(low) * _variance(low) + len(high) * _variance(high)) / size
        candidates.append((tau, cost))
    return candidates


def otsu(losses: Sequence[float]) -> float:
    """The first midpoint of least cost."""
    return float(min(otsu_candidates(losses), key=lambda pair: pair[1])[0])


def _variance(values: Sequence[Fraction]) -> Fraction:
    """Of a sample, which needs two values."""
    mean = sum(values) / Fraction(len(values))
    return sum((v - mean) ** 2 for v in values) / Fraction(len(values) - 1)


def procsim_confidence(loss: float, tau: float, *, lambda_: float) -> float:
    """ProcSim, Eq. 3."""
    return math.exp(-lambert_w(max(0.0, (loss - tau) / (2 * lambda_))))


def value_and_gradients(loss: Callable[..., Any], *matrices: Tensor) -> tuple[float, list[Tensor]]:
    """A loss of matrices given as rows of numbers, and its gradients with respect to them, entry by entry."""
    rows = [[[v.detach().clone().requires_grad_() for v in row] for row in matrix.double()] for matrix in matrices]
    value = loss(*rows)
    if not value.requires_grad:
        return float(value), [torch.zeros_like(matrix, dtype=torch.float64) for matrix in matrices]
    gradients = []
    for leaves, matrix in zip(rows, matrices, strict=True):
        flat = [v for row in leaves for v in row]
        found = torch.autograd.grad(value, flat, allow_unused=True, retain_graph=True)
        zero = torch.zeros((), dtype=torch.float64)
        gradients.append(torch.stack([zero if g is None else g for g in found]).reshape(matrix.shape))
    return float(value.detach()), gradients
