"""Proxy-NCA against a loop over its equation and against pytorch-metric-learning, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.oracles import losses as oracle
from tests.training.losses.draws import SIZES, assert_is_the_equation, draw, make_loss, value_and_gradients
from training.losses.interface import average_losses
from training.losses.proxy_nca import proxy_nca_losses, scale_for


def proxy_nca_loss(
    embeddings: Tensor, proxies: Tensor, labels: Tensor, *, scale: float = 8.0, weights: Tensor | None = None
) -> Tensor:
    return average_losses(proxy_nca_losses(embeddings, proxies, labels, scale=scale), weights)


@given(sizes=SIZES, scale=st.sampled_from([0.5, 1.0, 8.0, 32.0]))
@settings(max_examples=40, deadline=None)
def test_proxy_nca_is_its_equation_in_value_and_gradient(sizes, scale) -> None:
    drawn = draw(**sizes)
    inputs, labels = (drawn.embeddings, drawn.proxies), drawn.labels.tolist()
    assert_is_the_equation(
        value_and_gradients(proxy_nca_loss, inputs, drawn.labels, scale=scale),
        value=oracle.proxy_nca(*(tensor.tolist() for tensor in inputs), labels, scale=scale),
        gradients=oracle.gradients(oracle.proxy_nca, inputs, labels, scale=scale),
    )


def test_every_sample_has_the_loss_of_the_equation() -> None:
    drawn = draw(2, batch=7, classes=3, width=4)
    losses = proxy_nca_losses(drawn.embeddings, drawn.proxies, drawn.labels, scale=8.0)
    expected = oracle.proxy_nca_samples(
        drawn.embeddings.tolist(), drawn.proxies.tolist(), drawn.labels.tolist(), scale=8.0
    )
    assert losses.shape == (7,)
    assert losses.tolist() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("seed", range(3))
def test_proxy_nca_agrees_with_pytorch_metric_learning(seed: int, scale: float) -> None:
    from pytorch_metric_learning.losses import ProxyNCALoss

    drawn = draw(seed, batch=20, classes=6, width=8)
    theirs = ProxyNCALoss(num_classes=6, embedding_size=8, softmax_scale=scale).double()
    theirs.proxies = nn.Parameter(drawn.proxies.clone())
    x = drawn.embeddings.clone().requires_grad_()
    expected = theirs(x, drawn.labels)
    expected.backward()
    assert_is_the_equation(
        value_and_gradients(proxy_nca_loss, (drawn.embeddings, drawn.proxies), drawn.labels, scale=scale),
        value=float(expected.detach()),
        gradients=(x.grad, theirs.proxies.grad),
    )


def test_the_only_class_there_is_costs_nothing() -> None:
    drawn = draw(6, batch=4, classes=1, width=3)
    value, *gradients = value_and_gradients(proxy_nca_loss, (drawn.embeddings, drawn.proxies), drawn.labels)
    assert float(value) == 0.0
    assert not any(g.any() for g in gradients)


def test_without_scale_every_proxy_is_as_probable_as_any_other() -> None:
    drawn = draw(7, batch=4, classes=3, width=3)
    losses = proxy_nca_losses(drawn.embeddings, drawn.proxies, drawn.labels, scale=1e-13)
    torch.testing.assert_close(losses, torch.full((4,), math.log(3), dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_probability_too_small_for_the_type_still_has_a_loss_and_a_gradient(dtype: torch.dtype) -> None:
    proxies = torch.eye(2, dtype=dtype)
    embeddings = torch.tensor([[1.0, 1e-3], [1e-3, 1.0]], dtype=dtype)
    labels = torch.tensor([1, 0])  # each at the other's proxy: exp(-2000 * 2) is 0 in both types
    value, *gradients = value_and_gradients(proxy_nca_loss, (embeddings, proxies), labels, scale=2000.0)
    assert float(value) == pytest.approx(2000 * 2, rel=2e-3)
    assert all(g.isfinite().all() and g.any() for g in gradients)


def test_the_module_passes_its_scale_on() -> None:
    drawn = draw(14, batch=6, classes=3, width=4)
    loss = make_loss("proxy-nca", nca_scale=3.0).double()
    expected = proxy_nca_loss(drawn.embeddings, loss.proxies, drawn.labels, scale=3.0)
    assert torch.equal(loss(drawn.embeddings, drawn.batch), expected)


WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.125], dtype=torch.float64)


def test_weighted_proxy_nca_is_its_samples_weighed() -> None:
    drawn = draw(15, batch=5, classes=3, width=4)
    samples = oracle.proxy_nca_samples(
        drawn.embeddings.tolist(), drawn.proxies.tolist(), drawn.labels.tolist(), scale=3.0
    )
    weighed = sum(w * loss for w, loss in zip(WEIGHTS.tolist(), samples, strict=True)) / WEIGHTS.sum().item()
    found = proxy_nca_loss(drawn.embeddings, drawn.proxies, drawn.labels, scale=3.0, weights=WEIGHTS)
    assert found.item() == pytest.approx(weighed, rel=1e-10)


def test_gradients_of_weighted_proxy_nca_agree_with_finite_differences() -> None:
    drawn = draw(15, batch=5, classes=3, width=4)
    inputs = (drawn.embeddings.requires_grad_(), drawn.proxies.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda x, p: proxy_nca_loss(x, p, drawn.labels, scale=3.0, weights=WEIGHTS), inputs
    )


@pytest.mark.parametrize(("classes", "scale"), [(4, 1.6), (25, 4.0), (100, 8.0), (1600, 32.0), (50_000, 32.0)])
def test_more_classes_have_a_larger_scale_up_to_a_bound(classes: int, scale: float) -> None:
    assert scale_for(classes) == pytest.approx(scale)


def test_a_scale_of_zero_is_that_of_the_number_of_classes() -> None:
    drawn = draw(14, batch=6, classes=3, width=4)
    found, given_ = (
        make_loss("proxy-nca", nca_scale=scale)(drawn.embeddings, drawn.batch)
        for scale in (0.0, scale_for(3))
    )  # fmt: skip
    assert torch.equal(found, given_)
    assert float(found.detach()) != pytest.approx(math.log(3)), "a scale of 0 itself would make all proxies alike"
