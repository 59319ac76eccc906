"""Adaptive Proxy-Anchor (Phan et al., "Adaptive Proxy Anchor Loss for Deep Metric Learning", Eqs. 2-4)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from training.losses.anchor_loss import anchor_loss
from training.losses.interface import Batch, ProxyLoss
from training.losses.pairs import LabelPairs
from training.options.losses import AdaptiveOptions


def adaptive_proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    margins: Tensor,
    *,
    weights: Tensor | None = None,
    negative_weights: Tensor | None = None,
    alpha: float = 32.0,
    kappa: float = 1.0,
    margin_of: str = "proxy",
    negative_normalisation: str = "all",
) -> Tensor:
    """Proxy-Anchor with a learnt margin m, one for all classes or one each, kept from 0 by its last term.

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x: y_x = p}  w_x exp(-alpha (s(x,p) - m_p)))
          + 1/|P|  sum_{p in P } log(1 + sum_{x: y_x != p} v_x exp( alpha (s(x,p) + m  )))
          + kappa / mean(m)

    In the negative term m is m_p, the margin of the proxy's class, or, as the paper's Eq. 2 prints it, m_x, that
    of the sample's. In the positive term the two are one. The weights w and v are ours, as in `proxy_anchor_loss`.

    Args:
        embeddings: (B, D), any norm.
        proxies: (C, D), any norm.
        labels: (B,) int64 in 0..C-1.
        margins: () or (C,), greater than 0.
        weights, negative_weights: (B,) w and v in 0..1, how far each label is believed; None: 1.
        alpha: scale of the cosines.
        kappa: weight of the last term, the paper's lambda.
        margin_of: `proxy` or `sample`, the margin of the negative term; the same where there is one margin.
        negative_normalisation: `all` or `present`, see `anchor_loss`.

    Returns:
        () float32, or float64 for float64 input; kappa / mean(m) for an empty batch.
    """
    if margins.shape not in {(), (len(proxies),)}:
        raise ValueError(f"margins must be of shape () or ({len(proxies)},), got {tuple(margins.shape)}")
    if margin_of not in {"proxy", "sample"}:
        raise ValueError(f"margin_of must be proxy or sample, got {margin_of!r}")
    by_sample = margin_of == "sample" and margins.ndim > 0
    anchored = anchor_loss(
        embeddings,
        proxies,
        LabelPairs(labels),
        alpha=alpha,
        margins=margins,
        sample_margins=margins[labels] if by_sample else None,
        weights=weights,
        negative_weights=negative_weights,
        negative_normalisation=negative_normalisation,
    ).value
    return anchored + kappa / margins.to(anchored.dtype).mean()


class AdaptiveProxyAnchor(ProxyLoss):
    """Adaptive Proxy-Anchor with (C, D) proxies of its own and a margin, or C of them.

    A margin is the softplus of a free parameter, so that no step of the optimizer takes it to 0 or below. It
    starts at `delta`.
    """

    def __init__(self, options: AdaptiveOptions, *, class_count: int, **others: Any) -> None:
        super().__init__(options, class_count=class_count, **others)
        shape = (class_count,) if options.margins == "per-class" else ()
        start = options.delta + math.log(-math.expm1(-options.delta))  # the inverse of softplus, for any size
        self.free_margins = nn.Parameter(torch.full(shape, start))

    @property
    def margins(self) -> Tensor:
        """() or (C,) float32 margins as they are now, all greater than 0."""
        return nn.functional.softplus(self.free_margins)

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings from the batch's labels, positives weighed by its weights."""
        return adaptive_proxy_anchor_loss(
            embeddings,
            self.proxies,
            batch.labels,
            self.margins,
            weights=batch.weights,
            negative_weights=batch.weights if self.options.negative_weights == "confidence" else None,
            alpha=self.options.alpha,
            kappa=self.options.kappa,
            margin_of=self.options.margin_of,
            negative_normalisation=self.options.negative_normalisation,
        )

    def parameter_groups(self, *, proxy_lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """The proxies as everywhere; the margins at the same rate, without weight decay.

        Decay pulls the free parameter to 0, where the margin is log 2: an opinion about margins nobody holds.
        """
        return [
            {"params": [self.proxies], "lr": proxy_lr, "weight_decay": weight_decay},
            {"params": [self.free_margins], "lr": proxy_lr, "weight_decay": 0.0},
        ]
