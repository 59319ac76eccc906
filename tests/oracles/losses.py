"""The losses as loops over their printed equations, one number at a time: slow, and nothing like the real code.

The same loops run on floats (with `math`) and on 0-d float64 tensors (with `torch`), whose gradient is autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Numbers = Sequence[Sequence[Any]]


def cosine(a: Sequence[Any], b: Sequence[Any]) -> Any:
    """The cosine of two vectors."""
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / (sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5)


def proxy_anchor(
    embeddings: Numbers,
    proxies: Numbers,
    labels: Sequence[int],
    *,
    alpha: float,
    delta: float,
    negative_normalisation: str,
    exp: Callable[[Any], Any] = math.exp,
    log: Callable[[Any], Any] = math.log,
) -> Any:
    """Proxy-Anchor, Eq. 4."""
    with_positive, with_negative = 0, 0
    positive_term, negative_term = 0.0, 0.0
    for number, proxy in enumerate(proxies):
        pull, push = 0.0, 0.0
        positives = [x for x, label in zip(embeddings, labels, strict=True) if label == number]
        negatives = [x for x, label in zip(embeddings, labels, strict=True) if label != number]
        for x in positives:
            pull = pull + exp(-alpha * (cosine(x, proxy) - delta))
        for x in negatives:
            push = push + exp(alpha * (cosine(x, proxy) + delta))
        if positives:
            with_positive += 1
            positive_term = positive_term + log(1 + pull)
        if negatives:
            with_negative += 1
            negative_term = negative_term + log(1 + push)
    divisor = len(proxies) if negative_normalisation == "all" else with_negative
    return positive_term / max(with_positive, 1) + negative_term / max(divisor, 1)


def smooth_proxy_anchor(
    embeddings: Numbers,
    proxies: Numbers,
    confidences: Sequence[Sequence[float]],
    *,
    alpha: float,
    delta: float,
    lambda_: float,
    beta: float,
    negative_normalisation: str,
    exp: Callable[[Any], Any] = math.exp,
    log: Callable[[Any], Any] = math.log,
) -> Any:
    """Smooth Proxy-Anchor, Eq. 5 with the weights of Eq. 7."""
    with_positive, with_negative = 0, 0
    positive_term, negative_term = 0.0, 0.0
    for number, proxy in enumerate(proxies):
        pull, push = 0.0, 0.0
        positives, negatives = 0, 0
        for x, row in zip(embeddings, confidences, strict=True):
            weight = _sigmoid(beta * (row[number] - lambda_))
            if row[number] > lambda_:
                positives += 1
                pull = pull + weight * exp(-alpha * (cosine(x, proxy) - delta))
            else:
                negatives += 1
                push = push + (1 - weight) * exp(alpha * (cosine(x, proxy) + delta))
        if positives:
            with_positive += 1
            positive_term = positive_term + log(1 + pull)
        if negatives:
            with_negative += 1
            negative_term = negative_term + log(1 + push)
    divisor = len(proxies) if negative_normalisation == "all" else with_negative
    return positive_term / max(with_positive, 1) + negative_term / max(divisor, 1)


def _sigmoid(value: float) -> float:
    if value < -700:  # exp would leave the range of a float; the result is below 1e-304
        return 0.0
    return 1 / (1 + math.exp(-value))


def gradients(
    loss: Callable[..., Any], embeddings: Tensor, proxies: Tensor, target: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """(B, D) and (C, D) float64 gradients of one of the losses above, entry by entry through autograd."""
    x = [[v.detach().clone().requires_grad_() for v in row] for row in embeddings.double()]
    p = [[v.detach().clone().requires_grad_() for v in row] for row in proxies.double()]
    value = loss(x, p, target, exp=torch.exp, log=torch.log, **options)
    leaves = [v for row in (*x, *p) for v in row]
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    flat = torch.stack([torch.zeros((), dtype=torch.float64) if g is None else g for g in found])
    return flat[: embeddings.numel()].reshape(embeddings.shape), flat[embeddings.numel() :].reshape(proxies.shape)
