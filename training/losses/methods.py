"""The losses by their command-line names."""

from __future__ import annotations

import torch

from training.loss_config import LIBRARY_METHODS, LossConfig
from training.losses.adaptive_proxy_anchor import AdaptiveProxyAnchor
from training.losses.guidance import Guidance
from training.losses.interface import MetricLoss, ProxyLoss
from training.losses.library import build_library_loss
from training.losses.multi_similarity import MultiSimilarity
from training.losses.procsim import ProcSim
from training.losses.proxy_anchor import ProxyAnchor
from training.losses.proxy_nca import ProxyNca
from training.losses.smooth_proxy_anchor import SmoothProxyAnchor
from training.losses.superloss import SuperLoss

_WITH_PROXIES: dict[str, type[ProxyLoss]] = {
    "spa": SmoothProxyAnchor,
    "proxy-anchor": ProxyAnchor,
    "adaptive-proxy-anchor": AdaptiveProxyAnchor,
    "proxy-nca": ProxyNca,
}
_WITHOUT_PROXIES: dict[str, type[MultiSimilarity | SuperLoss]] = {
    "multi-similarity": MultiSimilarity,
    "superloss": SuperLoss,
}


def build_loss(
    config: LossConfig,
    *,
    class_count: int,
    embedding_dim: int,
    generator: torch.Generator,
    guidance: Guidance | None = None,
) -> MetricLoss:
    """The loss that the config names, new.

    Args:
        config: which loss, and its hyper-parameters.
        class_count, embedding_dim: C and D.
        generator: of initial proxies and other weights.
        guidance: similarities for ProcSim's language-guidance term.

    Raises:
        MissingDependencyError: a method of pytorch-metric-learning, which is not installed.
    """
    sizes = {"class_count": class_count, "embedding_dim": embedding_dim}
    if config.method == "procsim":
        return ProcSim(config, **sizes, generator=generator, guidance=guidance)
    if config.method in LIBRARY_METHODS:
        return build_library_loss(config.method, **sizes, generator=generator)
    if config.method in _WITHOUT_PROXIES:
        return _WITHOUT_PROXIES[config.method](config)
    return _WITH_PROXIES[config.method](config, **sizes, generator=generator)
