"""MetricLoss interface: a module over a batch, which may have parameters of its own, such as proxies."""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from training.options.losses import LOSSES, LossConfig

UNIT_PROXIES_ABOVE = 10_000


def log1p_sum_exp(logits: Tensor, members: Tensor, *, dim: int = 0) -> Tensor:
    """log(1 + sum over the members of exp(logits)), along one dimension: by default over the batch.

    `logits` are (B, C), `members` (B, C) bool. Returns (C,), or (B,) with dim=1: exactly 0, with gradient exactly 0,
    where there are no members.
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


class ClassColumns(Protocol):
    """(B, C) confidences of a batch that are computed on demand, some classes at a time."""

    def columns(self, start: int, stop: int) -> Tensor:
        """(B, stop - start) in 0..1, of the classes start..stop-1."""


def read_columns(confidences: Tensor | ClassColumns, start: int, stop: int) -> Tensor:
    """(B, stop - start) confidences in the classes start..stop-1, constants to autograd."""
    if isinstance(confidences, Tensor):
        return confidences.detach()[:, start:stop]
    return confidences.columns(start, stop).detach()


@dataclass(frozen=True, slots=True)
class Batch:
    """Labels and confidences of the B samples of a step.

    Attributes:
        labels: (B,) int64 labels used in training, in 0..C-1.
        confidences: (B, C) in 0..1, or its columns where (B, C) would be too large; None for losses without.
    """

    labels: Tensor
    confidences: Tensor | ClassColumns | None = None


def average_losses(losses: Tensor, weights: Tensor | None = None) -> Tensor:
    """() mean of (B,) losses, with (B,) weights if given; 0 for an empty batch or weights of 0."""
    if weights is None:
        return losses.sum() / max(len(losses), 1)
    weights = weights.to(losses.dtype)
    return (weights * losses).sum() / weights.sum().clamp(min=torch.finfo(losses.dtype).tiny)


class MetricLoss(nn.Module):
    """A loss over a batch of embeddings; proxies are parameters, running statistics are buffers.

    Args:
        options: of the options class in the loss's entry in `training.options.losses`.
        class_count, embedding_dim: C and D.
        generator: of initial proxies and other weights.

    Attributes:
        positives: (B,) int64, for how many classes each sample of the last batch was positive; None where labels alone
            say so.
    """

    positives: Tensor | None = None

    def __init__(self, options: Any, *, class_count: int, embedding_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.options = options

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings of any norm, float32 (float64 for float64 input)."""
        raise NotImplementedError

    def parameter_groups(self, *, proxy_lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW groups of the loss's own parameters: one at the rate of proxies, if it has any."""
        own = list(self.parameters())
        return [{"params": own, "lr": proxy_lr, "weight_decay": weight_decay}] if own else []


class ProxyLoss(MetricLoss):
    """A loss with proxies (C, D), one per training class."""

    def __init__(
        self, options: Any, *, class_count: int, embedding_dim: int, generator: torch.Generator, **others: Any
    ) -> None:
        super().__init__(options, class_count=class_count, embedding_dim=embedding_dim, generator=generator, **others)
        self.proxies = initial_proxies(class_count, embedding_dim, generator=generator)

    def start_at(self, means: Tensor) -> None:
        """Set the proxies to (C, D) class means; those of classes without one (zeros) stay."""
        known = means.norm(dim=1, keepdim=True) > 0
        with torch.no_grad():
            self.proxies.copy_(torch.where(known, means.to(self.proxies), self.proxies))


def build_loss(config: LossConfig, **sizes: Any) -> MetricLoss:
    """New loss of a config; `sizes` are the keywords of `MetricLoss`."""
    module, _, name = LOSSES[config.method].place.partition(":")
    kind: type[MetricLoss] = getattr(import_module(f"training.losses.{module}"), name)
    return kind(config.options, **sizes)
