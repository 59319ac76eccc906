"""ProcSim (Barbany et al., "ProcSim: Proxy-based Confidence for Robust Similarity Learning", WACV 2024)."""

from typing import Any

import torch
from scipy.special import lambertw
from torch import Tensor

from training.losses.interface import Batch, ProxyLoss, initial_proxies
from training.losses.multi_similarity import multi_similarity_losses
from training.losses.proxy_nca import proxy_nca_losses, scale_for
from training.options.losses import ProcSimOptions

MIN_BATCH = 4  # two losses on each side of a threshold
SAME_COST = 1e-12  # of the cost of not splitting at all


@torch.no_grad()
def lambert_w(x: Tensor) -> Tensor:
    """W with W exp(W) = x, for x >= 0; no gradient."""
    return torch.as_tensor(lambertw(x.double().cpu().numpy()).real).to(x)


@torch.no_grad()
def otsu_threshold(losses: Tensor) -> Tensor:
    """Otsu threshold: midpoint of two consecutive losses with the least variance on its sides (Algorithm 1).

        cost(tau) = 1/B (|C0| Var[C0] + |C1| Var[C1]),  C0 = {l <= tau},  C1 = {l >= tau}

    over the midpoints of the sorted losses i and i+1, i in 2..B-2. As printed, both sets are closed: losses that equal
    a midpoint are in both. Var is the sample variance, as the paper asks for two losses on each side; the population
    variance gives the same threshold in most batches. Of equal costs (to 1e-12 of the squares of all losses) the
    smallest threshold wins. Sorted prefix sums: O(B log B), in float64. `losses` are (B,), B >= 4.
    """
    if len(losses) < MIN_BATCH:
        raise ValueError(f"a threshold between clean and noisy losses needs {MIN_BATCH} of them, got {len(losses)}")
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
def procsim_confidences(losses: Tensor, threshold: Tensor, *, lambda_: float) -> Tensor:
    """Confidence in each sample's label, from its proxy loss (Eq. 3), as constants.

        sigma_i = exp(-W([(l_i - tau) / (2 lambda)]_+))

    1 up to the threshold, falling to 0 above it; also 1 everywhere with an infinite threshold or lambda.
    """
    excess = (losses.double() - threshold.double()).clamp(min=0)
    return torch.exp(-lambert_w(excess / (2 * lambda_))).to(losses.dtype)


class ProcSim(ProxyLoss):
    """A sum over samples, each weighted by its confidence: Eq. 4 without its second term, the language guidance.

        L = 1/B sum_i sigma_i l_i^DML

    The confidences come from the Proxy-NCA losses of separate proxies, trained on all samples alike, on embeddings that
    get no gradient from them. Their loss is part of the graph, not of the value. Proxy-NCA for l^DML has proxies of its
    own. Confidences of a batch of fewer than four are 1. The paper's second term, a main part of its method, needs
    similarities of a language model.
    """

    def __init__(
        self,
        options: ProcSimOptions,
        *,
        class_count: int,
        embedding_dim: int,
        generator: torch.Generator,
        **others: Any,
    ) -> None:
        super().__init__(options, class_count=class_count, embedding_dim=embedding_dim, generator=generator, **others)
        if options.procsim_base == "proxy-nca":
            self.base_proxies = initial_proxies(class_count, embedding_dim, generator=generator)

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings, from labels alone."""
        options = self.options
        count = max(len(embeddings), 1)
        proxy_losses = proxy_nca_losses(embeddings.detach(), self.proxies, batch.labels, scale=options.procsim_scale)
        confidences = torch.ones_like(proxy_losses)
        if len(embeddings) >= MIN_BATCH:
            threshold = otsu_threshold(proxy_losses.detach())
            confidences = procsim_confidences(proxy_losses, threshold, lambda_=options.procsim_lambda)
        loss = (confidences * self._base_losses(embeddings, batch.labels)).sum() / count
        own = proxy_losses.sum() / count
        return loss + (own - own.detach())  # trains the proxies, adds 0

    def parameter_groups(self, *, proxy_lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Noise-finding proxies at their own rate without weight decay; those of l^DML as in every loss.

        AdamW without weight decay is Adam, and Adam is separate for every parameter: the "independently optimised" Adam
        of the paper (A.3).
        """
        own = [{"params": [self.proxies], "lr": self.options.procsim_proxy_lr, "weight_decay": 0.0}]
        if self.options.procsim_base == "proxy-nca":
            own.append({"params": [self.base_proxies], "lr": proxy_lr, "weight_decay": weight_decay})
        return own

    def _base_losses(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B,) l^DML."""
        if self.options.procsim_base == "proxy-nca":
            scale = self.options.nca_scale or scale_for(len(self.base_proxies))
            return proxy_nca_losses(embeddings, self.base_proxies, labels, scale=scale)
        return multi_similarity_losses(embeddings, labels, self.options)
