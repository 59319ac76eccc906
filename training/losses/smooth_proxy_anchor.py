"""Smooth Proxy-Anchor (Roig et al., "Smooth Proxy-Anchor Loss for Noisy Metric Learning", Eqs. 5 and 7)."""

from __future__ import annotations

from torch import Tensor

from training.losses.anchor_loss import anchor_loss
from training.losses.interface import Batch, Measured, ProxyLoss
from training.losses.pairs import ClassColumns, ConfidencePairs


def smooth_proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    confidences: Tensor | ClassColumns,
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

    Both weights are sigmoid(beta |c - lambda|), at least a half, so neither tail of the sigmoid underflows. (The
    gradient printed in the paper's Eq. 6 lacks the weight in its denominators; this is the gradient of Eq. 5.)

    Args:
        embeddings: (B, D), any norm.
        proxies: (C, D), any norm.
        confidences: (B, C) in 0..1, from a trained confidence module, or its columns on demand: the loss is the same,
            and (B, C) is never held. No gradient flows into them.
        alpha, delta: scale and margin of the cosines.
        lambda_, beta: position and sharpness of the smoothing function.
        negative_normalisation: `all` or `present`, see `anchor_loss`.

    Returns:
        () float32, or float64 for float64 input.
    """
    pairs = ConfidencePairs(confidences, lambda_=lambda_, beta=beta)
    normalisation = negative_normalisation
    return anchor_loss(
        embeddings, proxies, pairs, alpha=alpha, margins=delta, negative_normalisation=normalisation
    ).value


class SmoothProxyAnchor(ProxyLoss):
    """Smooth Proxy-Anchor with (C, D) proxies of its own."""

    def measure(self, embeddings: Tensor, batch: Batch) -> Measured:
        """The loss of (B, D) embeddings from the batch's confidences, and the positives of each sample."""
        if batch.confidences is None:
            raise ValueError("Smooth Proxy-Anchor needs the confidences of a trained confidence module")
        options = self.options
        return anchor_loss(
            embeddings,
            self.proxies,
            ConfidencePairs(batch.confidences, lambda_=options.lambda_, beta=options.beta),
            alpha=options.alpha,
            margins=options.delta,
            negative_normalisation=options.negative_normalisation,
        )

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss, as `measure` has it."""
        return self.measure(embeddings, batch).value
