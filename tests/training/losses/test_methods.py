"""The losses by their command-line names."""

from __future__ import annotations

import pytest
import torch

from tests.training.losses.draws import draw
from training.loss_config import LIBRARY_METHODS, METHODS, TRAINED_METHODS, UNTRAINED_METHODS, LossConfig
from training.losses.adaptive_proxy_anchor import AdaptiveProxyAnchor
from training.losses.interface import MetricLoss
from training.losses.library import LibraryLoss, MemoryLoss
from training.losses.methods import build_loss
from training.losses.multi_similarity import MultiSimilarity
from training.losses.procsim import ProcSim
from training.losses.proxy_anchor import ProxyAnchor
from training.losses.proxy_nca import ProxyNca
from training.losses.smooth_proxy_anchor import SmoothProxyAnchor
from training.losses.superloss import SuperLoss

KINDS = {
    "spa": SmoothProxyAnchor,
    "proxy-anchor": ProxyAnchor,
    "adaptive-proxy-anchor": AdaptiveProxyAnchor,
    "proxy-nca": ProxyNca,
    "multi-similarity": MultiSimilarity,
    "procsim": ProcSim,
    "superloss": SuperLoss,
    "triplet": LibraryLoss,
    "contrastive": LibraryLoss,
    "lifted-structure": LibraryLoss,
    "circle": LibraryLoss,
    "soft-triple": LibraryLoss,
    "norm-softmax": LibraryLoss,
    "fast-ap": LibraryLoss,
    "cross-batch-memory": MemoryLoss,
}
BUILT = (*TRAINED_METHODS, *LIBRARY_METHODS)


def build(method: str, *, seed: int = 0) -> MetricLoss:
    generator = torch.Generator().manual_seed(seed)
    return build_loss(LossConfig(method=method), class_count=3, embedding_dim=4, generator=generator)


def test_a_method_is_either_built_as_a_loss_or_untrained() -> None:
    assert sorted(METHODS) == sorted({*KINDS, *UNTRAINED_METHODS})


@pytest.mark.parametrize("method", BUILT)
def test_every_trained_method_names_its_loss(method: str) -> None:
    assert type(build(method)) is KINDS[method]


@pytest.mark.parametrize("method", BUILT)
def test_every_loss_gives_embeddings_a_finite_gradient(method: str) -> None:
    drawn = draw(1, batch=12, classes=3, width=4)
    embeddings = drawn.embeddings.float().requires_grad_()
    loss = build(method)(embeddings, drawn.batch)
    loss.backward()
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.any()


@pytest.mark.parametrize("method", BUILT)
def test_the_state_of_a_loss_can_be_carried_to_a_new_one(method: str) -> None:
    drawn = draw(2, batch=12, classes=3, width=4)
    first, second = build(method), build(method, seed=1)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(drawn.embeddings.float(), drawn.batch), second(drawn.embeddings.float(), drawn.batch))
