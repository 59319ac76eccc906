"""SuperLoss (Castells et al., NeurIPS 2020) over the pairs of the contrastive loss, as ProcSim compares with it."""

from __future__ import annotations

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
    """W with W exp(W) = x and W >= -1, for x >= -1/e; a constant to autograd, as the confidences made of it are.

    Args:
        x: any shape, floating; what rounding has put below -1/e counts as -1/e.

    Returns:
        As x in shape, type and device; computed in float64 on the CPU.
    """
    wide = x.double().cpu().numpy()
    values = np.where(wide <= -1 / math.e, -1.0, lambertw(wide).real)  # scipy has no number at -1/e itself
    return torch.from_numpy(values).to(x)


MIN_BATCH = 4  # two losses on each side
EM_STEPS = 50
VARIANCE_FLOOR = 1e-6  # of the variance of all losses
SAME_COST = 1e-12  # of the cost of not splitting at all


@torch.no_grad()
def otsu_threshold(losses: Tensor) -> Tensor:
    """The midpoint of two consecutive losses that leaves the least variance on its sides (ProcSim, Algorithm 1).

        cost(tau) = 1/B (|C0| Var[C0] + |C1| Var[C1]),  C0 = {l <= tau},  C1 = {l >= tau}

    over the midpoints of the sorted losses i and i+1, i in 2..B-2. Read as printed: both sets are closed, so losses
    that equal a midpoint (which are equal among themselves) are in both. Var divides by one less than the number of
    losses: the paper asks for two on each side, "which allows for computing the variance", where that of a population
    (of Otsu's method and k-means, which it names too) would need one; either reading gives the same threshold in most
    batches. Of equal costs (to 1e-12 of the squares of all losses) the smallest threshold wins. Sorted prefix sums:
    O(B log B).

    Args:
        losses: (B,) floating, B >= 4.

    Returns:
        () of the type of the losses; computed in float64.
    """
    _require_four(losses)
    sorted_ = losses.double().sort().values
    midpoints = (sorted_[1:-2] + sorted_[2:-1]) / 2
    centred = sorted_ - sorted_.mean()  # keeps the sums of squares from cancelling
    zero = centred.new_zeros(1)
    sums = torch.cat([zero, centred.cumsum(0)])
    squares = torch.cat([zero, centred.square().cumsum(0)])
    low = torch.searchsorted(sorted_, midpoints, right=True)  # |C0|
    before_high = torch.searchsorted(sorted_, midpoints)
    high = len(losses) - before_high  # |C1|
    within_low = squares[low] - sums[low].square() / low
    high_sums = sums[-1] - sums[before_high]
    within_high = squares[-1] - squares[before_high] - high_sums.square() / high
    cost = within_low * low / (low - 1) + within_high * high / (high - 1)  # B cost(tau)
    best = cost <= cost.min() + SAME_COST * squares[-1]
    return midpoints[best.int().argmax()].to(losses.dtype)  # argmax: the first


@torch.no_grad()
def mixture_threshold(losses: Tensor) -> Tensor:
    """Where a loss belongs to both of two Gaussians equally, between their means.

    Fifty steps of expectation-maximisation from the two sides of Otsu's threshold, variances kept above 1e-6 of the
    variance of all losses. Between the means the ratio of the responsibilities falls, so they cross there once or not
    at all; where they do not (one Gaussian covers the other), the threshold is the midpoint of the means.

    Args:
        losses: (B,) floating, B >= 4.

    Returns:
        () of the type of the losses; computed in float64.
    """
    _require_four(losses)
    wide = losses.double()
    centre = wide.mean()
    spread = wide.std(correction=0)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    standard = (wide - centre) / spread
    low = (wide <= otsu_threshold(wide)).double()
    means, variances, weights = _fit_two_gaussians(standard, torch.stack([low, 1 - low]))
    return (centre + spread * find_crossing(means, variances, weights)).to(losses.dtype)


def _fit_two_gaussians(values: Tensor, responsibilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(2,) means, variances and weights from (B,) values and the (2, B) responsibilities to start from."""
    smallest = torch.finfo(values.dtype).tiny
    for step in range(EM_STEPS + 1):
        counts = responsibilities.sum(dim=1).clamp(min=smallest)
        means = (responsibilities @ values) / counts
        distances = (values - means[:, None]).square()
        variances = ((responsibilities * distances).sum(dim=1) / counts).clamp(min=VARIANCE_FLOOR)
        weights = counts / len(values)
        if step < EM_STEPS:
            logits = weights.log() - variances.log() / 2
            responsibilities = (logits[:, None] - distances / (2 * variances[:, None])).softmax(dim=0)
    return means, variances, weights


def find_crossing(means: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """Where log(w0 N0) = log(w1 N1) between the means of two Gaussians; the midpoint where that is nowhere.

    At the share t of the way from the lower mean to the higher, with d the distance of the means, p = d²/2v0,
    q = d²/2v1 and c = log(w0/w1) + log(v1/v0)/2, the left side minus the right is c - p t² + q (1-t)²: falling in
    0..1, q + c at the lower mean and c - p at the higher.
    """
    order = means.argsort()
    means, variances, weights = means[order], variances[order], weights[order]
    distance = means[1] - means[0]
    p, q = distance.square() / (2 * variances)
    c = (weights[0] / weights[1]).log() + (variances[1] / variances[0]).log() / 2
    root = (q.square() - (q - p) * (q + c)).clamp(min=0).sqrt()
    crosses = (distance > 0) & (q + c >= 0) & (c <= p)
    share = torch.where(crosses, (q + c) / (q + root), torch.full_like(q, 0.5))
    return means[0] + share * distance


class RunningAverage(nn.Module):
    """The average of all values of all iterations so far, those of this one among them, as SuperLoss has it.

    Its sum and count are buffers: a resumed run goes on with the same average. In evaluation nothing is added.
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


def _require_four(losses: Tensor) -> None:
    if len(losses) < MIN_BATCH:
        raise ValueError(
            f"a threshold between clean and noisy losses needs {MIN_BATCH} of them, got {len(losses)}"
        )


@torch.no_grad()
def superloss_confidences(losses: Tensor, threshold: Tensor, *, lambda_: float) -> Tensor:
    """The confidences that minimise (l - tau) sigma + lambda (log sigma)² (ProcSim, Eqs. 1 and 2); constants.

        sigma = exp(-W(1/2 max(-2/e, (l - tau) / lambda)))

    Args:
        losses: any shape, floating.
        threshold: () tau.
        lambda_: infinity gives 1 everywhere.

    Returns:
        As the losses in shape and type, in 0..e.
    """
    argument = (losses.double() - threshold.double()) / lambda_
    return torch.exp(-lambert_w(argument.clamp(min=-2 / math.e) / 2)).to(losses.dtype)


class SuperLoss(MetricLoss):
    """The contrastive loss, each pair weighted by its confidence.

        positive pairs: [d_ij - positive margin]_+        negative pairs: [negative margin - d_ij]_+

    with d the Euclidean distance of the normalised embeddings, over i != j. tau is the average of all pair losses of
    all iterations, of positive pairs for positive pairs and of negative for negative; pairs that cost nothing count
    in it. The weighted losses are averaged over the pairs that cost something, each kind by itself, and added, as
    pytorch-metric-learning reduces its contrastive loss (ProcSim's comparison uses that). lambda (log sigma)² does not
    depend on the embeddings and is left out of the value.
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
    """(B, B) Euclidean distances of the normalised (B, D) embeddings, in at least float32; gradient 0 at distance 0.

    From differences, not from cosines: 2 - 2 cos has lost half of its digits where positive pairs should end.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        unit = nn.functional.normalize(embeddings.to(kind))
        return torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
