"""Smooth Proxy-Anchor (Roig et al., "Smooth Proxy-Anchor Loss for Noisy Metric Learning", Eqs. 5 and 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.losses.anchor import anchor_loss, cosine_to_proxies
from training.losses.interface import Batch, ProxyLoss


def smooth_proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    confidences: Tensor,
    *,
    alpha: float = 32.0,
    delta: float = 0.1,
    lambda_: float = 0.1,
    beta: float = 100.0,
    negative_normalisation: str = "all",
) -> Tensor:
    """Proxy-Anchor whose positives and weights come from class confidences; the given labels are not used.

        w_xp = sigmoid(beta (c_xp - lambda))        X_p+ = {x : c_xp > lambda}        X_p- = the rest of the batch
        L = 1/|P+| sum_{p in P+} log(1 + sum_{x in X_p+}    w_xp  exp(-alpha (s(x,p) - delta)))
          + 1/|P|  sum_{p in P } log(1 + sum_{x in X_p-} (1-w_xp) exp( alpha (s(x,p) + delta)))

    The weights enter as logarithms in the exponents, so neither tail of the sigmoid underflows. (The gradient
    printed in the paper's Eq. 6 lacks the weight in its denominators; this is the gradient of Eq. 5.)

    Args:
        embeddings: (B, D), any norm.
        proxies: (C, D), any norm.
        confidences: (B, C) in 0..1, from a trained confidence module; no gradient flows into them.
        alpha, delta: scale and margin of the cosines.
        lambda_, beta: position and sharpness of the smoothing function.
        negative_normalisation: `all` or `present`, see `anchor_loss`.

    Returns:
        () float32, or float64 for float64 input.
    """
    cosines = cosine_to_proxies(embeddings, proxies)
    evidence = beta * (confidences.detach().to(cosines.dtype) - lambda_)
    return anchor_loss(
        nn.functional.logsigmoid(evidence) - alpha * (cosines - delta),
        nn.functional.logsigmoid(-evidence) + alpha * (cosines + delta),
        positive=positive_proxies(confidences, lambda_=lambda_),
        negative_normalisation=negative_normalisation,
    )


def positive_proxies(confidences: Tensor, *, lambda_: float) -> Tensor:
    """(B, C) bool: the proxies a sample is positive for, confidence strictly above lambda; may be several or none."""
    return torch.gt(confidences, lambda_)


class SmoothProxyAnchor(ProxyLoss):
    """Smooth Proxy-Anchor with (C, D) proxies of its own."""

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings from the batch's confidences.

        Raises:
            ValueError: the batch has none.
        """
        if batch.confidences is None:
            raise ValueError("Smooth Proxy-Anchor needs the confidences of a trained confidence module")
        return smooth_proxy_anchor_loss(
            embeddings,
            self.proxies,
            batch.confidences,
            alpha=self.options.alpha,
            delta=self.options.delta,
            lambda_=self.options.lambda_,
            beta=self.options.beta,
            negative_normalisation=self.options.negative_normalisation,
        )

    def positives(self, batch: Batch) -> Tensor | None:
        return (
            None
            if batch.confidences is None
            else positive_proxies(batch.confidences, lambda_=self.options.lambda_)
        )
