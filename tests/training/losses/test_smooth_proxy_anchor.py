"""Smooth Proxy-Anchor against a loop over its equation, against Proxy-Anchor, and at the edges of its domain."""

from __future__ import annotations

import math

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
from training.losses.interface import Batch
from training.losses.pairs import positive_proxies
from training.losses.proxy_anchor import proxy_anchor_loss
from training.losses.smooth_proxy_anchor import smooth_proxy_anchor_loss

ANCHOR = {"alpha": 32.0, "delta": 0.1}
OPTIONS = {**ANCHOR, "lambda_": 0.1, "beta": 100.0}


@given(
    sizes=SIZES,
    beta=st.sampled_from([1.0, 50.0, 100.0, 200.0]),
    lambda_=st.sampled_from([0.075, 0.1, 0.5]),
    normalisation=st.sampled_from(NORMALISATIONS),
)
@settings(max_examples=40, deadline=None)
def test_smooth_proxy_anchor_is_its_equation_in_value_and_gradient(sizes, beta, lambda_, normalisation) -> None:
    drawn = draw(**sizes)
    inputs, confidences = (drawn.embeddings, drawn.proxies), drawn.confidences.tolist()
    options = {**ANCHOR, "beta": beta, "lambda_": lambda_, "negative_normalisation": normalisation}
    assert_is_the_equation(
        value_and_gradients(smooth_proxy_anchor_loss, inputs, drawn.confidences, **options),
        value=oracle.smooth_proxy_anchor(*(tensor.tolist() for tensor in inputs), confidences, **options),
        gradients=oracle.gradients(oracle.smooth_proxy_anchor, inputs, confidences, **options),
    )


@pytest.mark.parametrize("beta", [1e4, 1e6])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_one_hot_confidences_with_a_sharp_beta_give_proxy_anchor(beta: float, normalisation: str) -> None:
    drawn = draw(5, batch=12, classes=4, width=6)
    inputs, one_hot = (drawn.embeddings, drawn.proxies), nn.functional.one_hot(drawn.labels, 4).double()
    options = {"negative_normalisation": normalisation}
    smooth = value_and_gradients(smooth_proxy_anchor_loss, inputs, one_hot, **{**OPTIONS, "beta": beta}, **options)
    plain = value_and_gradients(proxy_anchor_loss, inputs, drawn.labels, **ANCHOR, **options)
    for got, wanted in zip(smooth, plain, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_without_any_positive_the_loss_is_the_negative_term_alone() -> None:
    drawn = draw(7, batch=6, classes=3, width=4)
    none = torch.zeros(6, 3, dtype=torch.float64)
    value, *gradients = value_and_gradients(
        smooth_proxy_anchor_loss, (drawn.embeddings, drawn.proxies), none, **OPTIONS
    )
    weightless = 1 / (1 + math.exp(100 * 0.1))  # w of confidence 0
    cosines = nn.functional.normalize(drawn.embeddings) @ nn.functional.normalize(drawn.proxies).T
    terms = [
        math.log1p(sum((1 - weightless) * math.exp(32 * (s + 0.1)) for s in column))
        for column in cosines.T.tolist()
    ]
    assert float(value) == pytest.approx(sum(terms) / 3, rel=1e-12)
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_with_positives_only_the_negative_term_and_its_gradient_are_exactly_zero(normalisation: str) -> None:
    one = draw(8, batch=1, classes=3, width=4).embeddings
    everything = torch.ones(6, 3, dtype=torch.float64)
    aligned, same = (one.repeat(count, 1) for count in (3, 6))  # every cosine is 1
    options = {**OPTIONS, "alpha": 1e4, "negative_normalisation": normalisation}
    value, *gradients = value_and_gradients(smooth_proxy_anchor_loss, (same, aligned), everything, **options)
    assert float(value) == 0.0  # exp(-1e4 * 0.9) is 0: nothing is left of the pull, and there is no push
    assert not any(g.any() for g in gradients)


def test_a_confidence_of_exactly_lambda_is_negative() -> None:
    below, at, above = 0.1 - 1e-9, 0.1, 0.1 + 1e-9
    chosen = positive_proxies(torch.tensor([[below, at, above]], dtype=torch.float64), lambda_=0.1)
    assert chosen.tolist() == [[False, False, True]]
    assert not positive_proxies(torch.tensor([0.1]), lambda_=0.1).any(), "in float32 too"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_cosines_and_a_sharp_beta_neither_overflow_nor_vanish(dtype: torch.dtype) -> None:
    proxies = torch.eye(2, dtype=dtype)
    embeddings = torch.cat([proxies, -proxies])
    confidences = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=dtype)
    value, *gradients = value_and_gradients(
        smooth_proxy_anchor_loss, (embeddings, proxies), confidences, **{**OPTIONS, "beta": 1e4}
    )
    # every proxy has a positive at cosine -1 (32 * 1.1) or 0 and a negative at +1 (32 * 1.1) or 0
    assert float(value) == pytest.approx(2 * 35.2, rel=1e-6)
    assert all(g.isfinite().all() for g in gradients)


def test_no_gradient_reaches_the_confidences() -> None:
    drawn = draw(12, batch=4, classes=3, width=4)
    drawn.confidences.requires_grad_()
    drawn.proxies.requires_grad_()
    smooth_proxy_anchor_loss(drawn.embeddings, drawn.proxies, drawn.confidences, **OPTIONS).backward()
    assert drawn.confidences.grad is None
    assert drawn.proxies.grad is not None


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_the_module_passes_every_option_on(normalisation: str) -> None:
    drawn = draw(14, batch=6, classes=3, width=4)
    options = {"alpha": 7.0, "delta": 0.3, "lambda_": 0.2, "beta": 11.0, "negative_normalisation": normalisation}
    loss = make_loss("spa", **options).double()
    expected = smooth_proxy_anchor_loss(drawn.embeddings, loss.proxies, drawn.confidences, **options)
    assert torch.equal(loss(drawn.embeddings, drawn.batch), expected)


def test_the_module_refuses_to_run_without_confidences() -> None:
    loss = make_loss("spa", classes=2, width=2)
    zero = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="trained confidence module"):
        loss(torch.ones(1, 2), Batch(labels=zero, rows=zero))
