"""SuperLoss (Castells et al., NeurIPS 2020) over contrastive pairs, as ProcSim compares with it."""

import math
from typing import Any

import numpy as np
import torch
from scipy.special import lambertw
from torch import Tensor, nn

from training.losses.interface import Batch, MetricLoss
from training.options.losses import SuperLossOptions


@torch.no_grad()
def lambert_w(x: Tensor) -> Tensor:
    """W with W exp(W) = x and W >= -1, for x >= -1/e (smaller values by rounding count as -1/e); no gradient."""
    wide = x.double().cpu().numpy()
    values = np.where(wide <= -1 / math.e, -1.0, lambertw(wide).real)  # scipy has no number at -1/e itself
    return torch.from_numpy(values).to(x)


class RunningAverage(nn.Module):
    """Average of all values of all iterations so far, including this one.

    Sum and count are buffers, for a resume. In evaluation nothing is added.
    """

    sum: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def forward(self, values: Tensor) -> Tensor:
        """() average, of the type of the values; 0 before the first value."""
        if self.training:
            self.sum += values.sum(dtype=torch.float64)
            self.count += values.numel()
        return (self.sum / self.count.clamp(min=1)).to(values.dtype)


@torch.no_grad()
def superloss_confidences(losses: Tensor, threshold: Tensor, *, lambda_: float) -> Tensor:
    """Confidences that minimise (l - tau) sigma + lambda (log sigma)² (ProcSim, Eqs. 1 and 2), as constants.

    sigma = exp(-W(1/2 max(-2/e, (l - tau) / lambda)))
    """
    argument = (losses.double() - threshold.double()) / lambda_
    return torch.exp(-lambert_w(argument.clamp(min=-2 / math.e) / 2)).to(losses.dtype)


class SuperLoss(MetricLoss):
    """The contrastive loss, each pair weighted by its confidence.

        positive pairs: [d_ij - positive margin]_+        negative pairs: [negative margin - d_ij]_+

    with d the Euclidean distance of the normalised embeddings, over i != j. tau is the average of all pair losses of
    all iterations, of positive and of negative pairs separately; pairs without loss count. The weighted losses are
    averaged over the pairs with a loss, each kind by itself, and added, as in pytorch-metric-learning. lambda (log
    sigma)² does not depend on the embeddings and is left out.
    """

    def __init__(self, options: SuperLossOptions, **others: Any) -> None:
        super().__init__(options, **others)
        self.positive_average = RunningAverage()
        self.negative_average = RunningAverage()

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings; a kind of pair that the batch lacks adds exactly 0."""
        distances = pair_distances(embeddings)
        same = batch.labels[:, None] == batch.labels
        others = ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        pull = (distances[same & others] - self.options.positive_margin).relu()
        push = (self.options.negative_margin - distances[~same]).relu()
        return self._weighted_mean(pull, self.positive_average) + self._weighted_mean(push, self.negative_average)

    def _weighted_mean(self, losses: Tensor, average: RunningAverage) -> Tensor:
        """() from the (P,) losses of all pairs of one kind."""
        threshold = average(losses)
        weights = superloss_confidences(losses, threshold, lambda_=self.options.superloss_lambda)
        return (weights * losses).sum() / (losses > 0).sum().clamp(min=1)


def pair_distances(embeddings: Tensor) -> Tensor:
    """(B, B) Euclidean distances of the normalised (B, D) embeddings, in at least float32; gradient 0 at 0.

    From differences, as 2 - 2 cos has lost half of its digits for near pairs.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        unit = nn.functional.normalize(embeddings.to(kind))
        return torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
