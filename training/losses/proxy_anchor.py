"""Proxy-Anchor (Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, Eq. 4)."""

from __future__ import annotations

from torch import Tensor

from training.losses.anchor_loss import anchor_loss
from training.losses.interface import Batch, ProxyLoss
from training.losses.pairs import LabelPairs


def proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    weights: Tensor | None = None,
    negative_weights: Tensor | None = None,
    alpha: float = 32.0,
    delta: float = 0.1,
    negative_normalisation: str = "all",
) -> Tensor:
    """Pull every proxy to the samples labelled with it, push it from the others.

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x: y_x = p}  w_x exp(-alpha (s(x,p) - delta)))
          + 1/|P|  sum_{p in P } log(1 + sum_{x: y_x != p} v_x exp( alpha (s(x,p) + delta)))

    The weights w and v are ours: 1 everywhere gives the paper's loss. P+ are the proxies that a sample is labelled
    with, whatever its weight. The push of a sample whose label is wrong is hardest from its own class.

    Args:
        embeddings: (B, D), any norm.
        proxies: (C, D), any norm.
        labels: (B,) int64 in 0..C-1.
        weights, negative_weights: (B,) w and v in 0..1, how far each label is believed; None: 1. No gradient flows
            into them.
        alpha, delta: scale and margin.
        negative_normalisation: `all` or `present`, see `anchor_loss`.

    Returns:
        () float32, or float64 for float64 input.
    """
    return anchor_loss(
        embeddings,
        proxies,
        LabelPairs(labels),
        alpha=alpha,
        margins=delta,
        weights=weights,
        negative_weights=negative_weights,
        negative_normalisation=negative_normalisation,
    ).value


class ProxyAnchor(ProxyLoss):
    """Proxy-Anchor with (C, D) proxies of its own."""

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings from the batch's labels; weights weigh positives, and negatives if asked."""
        return proxy_anchor_loss(
            embeddings,
            self.proxies,
            batch.labels,
            weights=batch.weights,
            negative_weights=batch.weights if self.options.negative_weights == "confidence" else None,
            alpha=self.options.alpha,
            delta=self.options.delta,
            negative_normalisation=self.options.negative_normalisation,
        )
