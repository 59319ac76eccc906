"""The sums, cosines and proxies that the losses share, safe for empty sets and in reduced precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

UNIT_PROXIES_ABOVE = 10_000


def log1p_sum_exp(logits: Tensor, members: Tensor, *, dim: int = 0) -> Tensor:
    """log(1 + sum over the members of exp(logits)), along one dimension: by default over the batch.

    Args:
        logits: (B, C) floating.
        members: (B, C) bool, the entries that take part.
        dim: the dimension that is summed over.

    Returns:
        (C,), or (B,) with dim=1: exactly 0, with gradient exactly 0, where there are no members.
    """
    shape = list(logits.shape)
    shape[dim] = 1
    one = logits.new_zeros(shape)  # exp(0): the 1 in the logarithm keeps logsumexp finite
    return torch.logsumexp(torch.cat([one, logits.masked_fill(~members, -math.inf)], dim=dim), dim=dim)


def anchor_loss(
    positive_logits: Tensor, negative_logits: Tensor, *, positive: Tensor, negative_normalisation: str
) -> Tensor:
    """Mean positive term over the proxies that have positives, plus mean negative term over all proxies.

    Args:
        positive_logits, negative_logits: (B, C), the exponents of the two sums.
        positive: (B, C) bool, X_p+; the rest of the batch is X_p-.
        negative_normalisation: `all` divides by |P|, `present` by the proxies that have a negative.

    Returns:
        () the loss; 0 for an empty batch.
    """
    negative = ~positive
    with_positive = positive.any(dim=0).sum().clamp(min=1)
    if negative_normalisation == "all":
        with_negative: Tensor | int = positive.shape[1]
    else:
        with_negative = negative.any(dim=0).sum().clamp(min=1)
    pull = log1p_sum_exp(positive_logits, positive).sum() / with_positive
    push = log1p_sum_exp(negative_logits, negative).sum() / with_negative
    return pull + push


def weigh_terms(logits: Tensor, weights: Tensor | None) -> Tensor:
    """(B, C) exponents of the sums, every sample's terms multiplied by its (B,) weight; None: as they are.

    A weight of 0 takes the sample's term out of the sum, as far as the type can tell.
    """
    if weights is None:
        return logits
    smallest = torch.finfo(logits.dtype).tiny
    return logits + weights.detach().to(logits.dtype).clamp(min=smallest).log()[:, None]


def cosine_to_proxies(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """(B, D) and (C, D) to (B, C) cosines in at least float32, whatever the autocast type."""
    with torch.autocast(embeddings.device.type, enabled=False):
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        unit = nn.functional.normalize(embeddings.to(kind))
        return unit @ nn.functional.normalize(proxies.to(kind)).T


def initial_proxies(class_count: int, embedding_dim: int, *, generator: torch.Generator) -> nn.Parameter:
    """(C, D) normal proxies of standard deviation sqrt(2/C), as in the Proxy-Anchor authors' code.

    Above 10,000 classes such a proxy is shorter than one Adam step at 1e-2 is long: unit norm there.
    """
    proxies = torch.randn(class_count, embedding_dim, generator=generator)
    if class_count > UNIT_PROXIES_ABOVE:
        return nn.Parameter(nn.functional.normalize(proxies))
    return nn.Parameter(proxies * math.sqrt(2 / class_count))
