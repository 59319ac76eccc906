"""What the trainer may rely on with any loss that has its own proxies, or only pairs."""

from __future__ import annotations

import pytest
import torch

from tests.training.losses.draws import draw
from training.loss_config import LossConfig
from training.losses.adaptive_proxy_anchor import AdaptiveProxyAnchor
from training.losses.interface import Batch, MetricLoss
from training.losses.multi_similarity import MultiSimilarity
from training.losses.proxy_anchor import ProxyAnchor
from training.losses.proxy_nca import ProxyNca
from training.losses.smooth_proxy_anchor import SmoothProxyAnchor

WITH_PROXIES = (SmoothProxyAnchor, ProxyAnchor, AdaptiveProxyAnchor, ProxyNca)
ALL = (*WITH_PROXIES, MultiSimilarity)


def build(kind: type[MetricLoss], *, classes: int, width: int) -> MetricLoss:
    if kind is MultiSimilarity:
        return MultiSimilarity(LossConfig())
    generator = torch.Generator().manual_seed(0)
    return kind(LossConfig(), class_count=classes, embedding_dim=width, generator=generator)


@pytest.mark.parametrize("kind", ALL)
def test_under_bfloat16_autocast_the_loss_is_the_float32_loss_of_the_same_numbers(kind: type[MetricLoss]) -> None:
    drawn = draw(11, batch=16, classes=5, width=8)
    loss = build(kind, classes=5, width=8)
    rounded = drawn.embeddings.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(rounded, drawn.batch)
    inside.backward()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, loss(rounded.float(), drawn.batch))
    assert rounded.grad.isfinite().all()
    assert all(parameter.grad.dtype == torch.float32 for parameter in loss.parameters())


@pytest.mark.parametrize("kind", ALL)
def test_float64_embeddings_have_a_float64_loss(kind: type[MetricLoss]) -> None:
    drawn = draw(12, batch=6, classes=3, width=4)
    assert build(kind, classes=3, width=4)(drawn.embeddings, drawn.batch).dtype == torch.float64


@pytest.mark.parametrize("kind", ALL)
def test_the_norm_of_embeddings_and_proxies_does_not_matter(kind: type[MetricLoss]) -> None:
    drawn = draw(13, batch=8, classes=3, width=4)
    loss = build(kind, classes=3, width=4).double()
    value = loss(drawn.embeddings, drawn.batch)
    if kind in WITH_PROXIES:
        loss.proxies.data /= 3
    scales = torch.arange(1, 9, dtype=torch.float64)[:, None]
    torch.testing.assert_close(loss(scales * drawn.embeddings, drawn.batch), value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_of_none_or_one_has_a_finite_loss_and_finite_gradients(kind: type[MetricLoss], size: int) -> None:
    drawn = draw(9, batch=size, classes=2, width=3)
    loss = build(kind, classes=2, width=3)
    embeddings = drawn.embeddings.float().requires_grad_()
    value = loss(embeddings, drawn.batch)
    value.backward()
    assert value.shape == ()
    assert value.isfinite()
    for tensor in (embeddings, *loss.parameters()):
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("kind", ALL)
def test_embeddings_on_top_of_each_other_have_finite_gradients(kind: type[MetricLoss]) -> None:
    loss = build(kind, classes=2, width=3)
    embeddings = torch.ones(4, 3).requires_grad_()  # all cosines among them are 1
    if kind in WITH_PROXIES:
        loss.proxies.data[:] = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    labels = torch.tensor([0, 1, 0, 1])
    confidences = torch.nn.functional.one_hot(labels, 2).float()
    value = loss(embeddings, Batch(labels=labels, rows=torch.arange(4), confidences=confidences))
    value.backward()
    assert value.isfinite()
    for tensor in (embeddings, *loss.parameters()):
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("kind", WITH_PROXIES)
def test_every_parameter_is_in_one_group_at_the_rate_of_proxies(kind: type[MetricLoss]) -> None:
    loss = build(kind, classes=3, width=4)
    groups = loss.parameter_groups(proxy_lr=0.02, weight_decay=1e-4)
    listed = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, listed)) == sorted(map(id, loss.parameters()))
    assert all(group["lr"] == 0.02 for group in groups)
    assert groups[0]["weight_decay"] == 1e-4
    assert listed[0] is loss.proxies


@pytest.mark.parametrize("kind", WITH_PROXIES)
def test_the_generator_decides_the_proxies_of_a_new_loss(kind: type[MetricLoss]) -> None:
    first, again = (build(kind, classes=3, width=4).proxies for _ in range(2))
    assert first.shape == (3, 4)
    assert torch.equal(first, again)
