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
