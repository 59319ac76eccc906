"""The losses by their command-line names, behind one interface."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.config import LossConfig
from training.losses.anchor import initial_proxies
from training.losses.proxy_anchor import proxy_anchor_loss
from training.losses.smooth_proxy_anchor import smooth_proxy_anchor_loss

NEEDS_CONFIDENCES = frozenset({"spa"})


class ProxyLoss(nn.Module):
    """A loss with its own proxies: (C, D), one a training class.

    Args:
        config: which loss, and its hyper-parameters.
        class_count, embedding_dim: C and D.
        generator: of the initial proxies.
    """

    def __init__(
        self, config: LossConfig, *, class_count: int, embedding_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.proxies = initial_proxies(class_count, embedding_dim, generator=generator)

    def forward(self, embeddings: Tensor, *, labels: Tensor, confidences: Tensor | None) -> Tensor:
        """() loss of (B, D) embeddings, from (B,) labels or (B, C) confidences, whichever the method uses."""
        config = self.config
        if config.method == "proxy-anchor":
            return proxy_anchor_loss(
                embeddings,
                self.proxies,
                labels,
                alpha=config.alpha,
                delta=config.delta,
                negative_normalisation=config.negative_normalisation,
            )
        if confidences is None:
            raise ValueError("Smooth Proxy-Anchor needs the confidences of a trained confidence module")
        return smooth_proxy_anchor_loss(
            embeddings,
            self.proxies,
            confidences,
            alpha=config.alpha,
            delta=config.delta,
            lambda_=config.lambda_,
            beta=config.beta,
            negative_normalisation=config.negative_normalisation,
        )
