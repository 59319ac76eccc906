"""Adaptive Proxy-Anchor (Phan et al., "Adaptive Proxy Anchor Loss for Deep Metric Learning", Eqs. 2-4)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from training.losses.anchor_loss import anchor_loss, label_pairs
from training.losses.interface import Batch, ProxyLoss
from training.options.losses import AdaptiveOptions


class AdaptiveProxyAnchor(ProxyLoss):
    """Proxy-Anchor with a learnt margin m, one for all classes or one each, kept from 0 by its last term.

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x: y_x = p}  w_x exp(-alpha (s(x,p) - m_p)))
          + 1/|P|  sum_{p in P } log(1 + sum_{x: y_x != p} v_x exp( alpha (s(x,p) + m  )))
          + kappa / mean(m)                                                        (kappa is the paper's lambda)

    In the negative term m is m_p, the margin of the proxy's class, or m_x, that of the sample's, as in the paper's Eq.
    2. The weights w and v are ours, as in `ProxyAnchor`. A margin is the softplus of a free parameter, so that it stays
    above 0; it starts at `delta`.
    """

    def __init__(self, options: AdaptiveOptions, *, class_count: int, **others: Any) -> None:
        super().__init__(options, class_count=class_count, **others)
        shape = (class_count,) if options.margins == "per-class" else ()
        start = options.delta + math.log(-math.expm1(-options.delta))  # the inverse of softplus, for any size
        self.free_margins = nn.Parameter(torch.full(shape, start))

    @property
    def margins(self) -> Tensor:
        """() or (C,) float32 current margins, all greater than 0."""
        return nn.functional.softplus(self.free_margins)

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings from the batch's labels; kappa / mean(m) for an empty batch."""
        options, margins = self.options, self.margins
        by_sample = options.margin_of == "sample" and margins.ndim > 0
        anchored, _ = anchor_loss(
            embeddings,
            self.proxies,
            label_pairs(batch.labels),
            alpha=options.alpha,
            margins=margins,
            sample_margins=margins[batch.labels] if by_sample else None,
        )
        return anchored + options.kappa / margins.to(anchored.dtype).mean()

    def parameter_groups(self, *, proxy_lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Proxies as in every loss; margins at the same rate, without weight decay, which would pull them to log 2."""
        return [
            {"params": [self.proxies], "lr": proxy_lr, "weight_decay": weight_decay},
            {"params": [self.free_margins], "lr": proxy_lr, "weight_decay": 0.0},
        ]
