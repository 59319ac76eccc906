"""Proxy-Anchor against a loop over its equation and against pytorch-metric-learning."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.oracles import losses as oracle
from tests.training.losses.draws import (
    NORMALISATIONS,
    SIZES,
    assert_is_the_equation,
    draw,
    make_loss,
    value_and_gradients,
)
from training.losses.proxy_anchor import proxy_anchor_loss

OPTIONS = {"alpha": 32.0, "delta": 0.1}


@given(sizes=SIZES, normalisation=st.sampled_from(NORMALISATIONS))
@settings(max_examples=40, deadline=None)
def test_proxy_anchor_is_its_equation_in_value_and_gradient(sizes, normalisation) -> None:
    drawn = draw(**sizes)
    inputs, labels = (drawn.embeddings, drawn.proxies), drawn.labels.tolist()
    options = {**OPTIONS, "negative_normalisation": normalisation}
    assert_is_the_equation(
        value_and_gradients(proxy_anchor_loss, inputs, drawn.labels, **options),
        value=oracle.proxy_anchor(*(tensor.tolist() for tensor in inputs), labels, **options),
        gradients=oracle.gradients(oracle.proxy_anchor, inputs, labels, **options),
    )


@given(sizes=SIZES, normalisation=st.sampled_from(NORMALISATIONS), both=st.booleans())
@settings(max_examples=40, deadline=None)
def test_weights_multiply_the_terms_of_one_sum_or_both_in_value_and_gradient(sizes, normalisation, both) -> None:
    drawn = draw(**sizes)
    inputs, labels = (drawn.embeddings, drawn.proxies), drawn.labels.tolist()
    options = {**OPTIONS, "negative_normalisation": normalisation}
    negative = drawn.weights.flip(0) if both else None
    told = {**options, "weights": drawn.weights.tolist(), "negative_weights": negative.tolist() if both else None}
    options |= {"weights": drawn.weights, "negative_weights": negative}
    assert_is_the_equation(
        value_and_gradients(proxy_anchor_loss, inputs, drawn.labels, **options),
        value=oracle.proxy_anchor(*(tensor.tolist() for tensor in inputs), labels, **told),
        gradients=oracle.gradients(oracle.proxy_anchor, inputs, labels, **told),
    )


def test_weighed_gradients_agree_with_finite_differences_and_none_flows_into_the_weights() -> None:
    drawn = draw(3, batch=5, classes=3, width=4)
    inputs = (drawn.embeddings.requires_grad_(), drawn.proxies.requires_grad_())
    weights = drawn.weights.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, p: proxy_anchor_loss(
            x, p, drawn.labels, weights=weights.detach(), negative_weights=weights.detach(), alpha=4.0
        ),
        inputs,
    )
    proxy_anchor_loss(*inputs, drawn.labels, weights=weights, negative_weights=weights).backward()
    assert weights.grad is None


def test_weights_of_one_change_nothing_and_a_weight_of_nothing_ends_the_pull_alone() -> None:
    drawn = draw(5, batch=4, classes=2, width=4)
    labels = torch.tensor([0, 0, 1, 1])
    plain = value_and_gradients(proxy_anchor_loss, (drawn.embeddings, drawn.proxies), labels)
    ones = value_and_gradients(proxy_anchor_loss, (drawn.embeddings, drawn.proxies), labels, weights=torch.ones(4))
    assert all(torch.equal(found, wanted) for found, wanted in zip(ones, plain, strict=True))
    far = drawn.embeddings.clone()
    far[0] = -drawn.proxies[0]  # pulled hard, if it were believed
    weights = torch.tensor([0.0, 1.0, 1.0, 1.0])
    _, by_embedding, _ = value_and_gradients(proxy_anchor_loss, (far, drawn.proxies), labels, weights=weights)
    by_push = torch.autograd.grad(
        torch.log1p(sum_of_pushes(x := far.clone().requires_grad_(), drawn.proxies[1], rows=(0, 1))) / 2, x
    )[0]
    torch.testing.assert_close(by_embedding[0], by_push[0], rtol=1e-9, atol=1e-12)
    _, unmoved, _ = value_and_gradients(
        proxy_anchor_loss, (far, drawn.proxies), labels, weights=weights, negative_weights=weights
    )
    assert unmoved[0].abs().max() < 1e-290, "what is not believed at all neither pulls nor pushes"


def sum_of_pushes(embeddings: torch.Tensor, proxy: torch.Tensor, *, rows: tuple[int, ...]) -> torch.Tensor:
    cosines = torch.nn.functional.cosine_similarity(embeddings[list(rows)], proxy[None])
    return torch.exp(32.0 * (cosines + 0.1)).sum()


@pytest.mark.parametrize("seed", range(3))
def test_proxy_anchor_agrees_with_pytorch_metric_learning(seed: int) -> None:
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    drawn = draw(seed, batch=20, classes=6, width=8)
    theirs = ProxyAnchorLoss(num_classes=6, embedding_size=8, margin=0.1, alpha=32).double()
    theirs.proxies = nn.Parameter(drawn.proxies.clone())
    x = drawn.embeddings.clone().requires_grad_()
    expected = theirs(x, drawn.labels)
    expected.backward()
    assert_is_the_equation(
        value_and_gradients(proxy_anchor_loss, (drawn.embeddings, drawn.proxies), drawn.labels, **OPTIONS),
        value=float(expected.detach()),
        gradients=(x.grad, theirs.proxies.grad),
    )


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_the_module_passes_every_option_on(normalisation: str) -> None:
    drawn = draw(14, batch=6, classes=3, width=4)
    options = {"alpha": 7.0, "delta": 0.3, "negative_normalisation": normalisation}
    loss = make_loss("proxy-anchor", **options).double()
    expected = proxy_anchor_loss(drawn.embeddings, loss.proxies, drawn.labels, **options)
    assert torch.equal(loss(drawn.embeddings, drawn.batch), expected)
    weighed = proxy_anchor_loss(drawn.embeddings, loss.proxies, drawn.labels, weights=drawn.weights, **options)
    assert torch.equal(loss(drawn.embeddings, drawn.weighed), weighed)
    assert not torch.equal(weighed, expected)
    given = {"positive_weights": "confidence", "negative_weights": "confidence"}
    both = make_loss("proxy-anchor", **options, **given).double()
    found = both(drawn.embeddings, drawn.weighed)
    assert torch.equal(found, proxy_anchor_loss(
        drawn.embeddings, both.proxies, drawn.labels, weights=drawn.weights, negative_weights=drawn.weights, **options
    ))  # fmt: skip
    assert not torch.equal(found, weighed)
