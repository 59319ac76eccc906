"""Adaptive Proxy-Anchor against a loop over its equation, against Proxy-Anchor, and its margins under training."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import losses as oracle
from tests.training.losses.draws import (
    NORMALISATIONS,
    SIZES,
    assert_is_the_equation,
    draw,
    make_loss,
    value_and_gradients,
)
from training.losses.adaptive_proxy_anchor import adaptive_proxy_anchor_loss
from training.losses.proxy_anchor import proxy_anchor_loss

OWNERS = ("proxy", "sample")


@given(
    sizes=SIZES,
    one_a_class=st.booleans(),
    margin_of=st.sampled_from(OWNERS),
    kappa=st.sampled_from([0.0, 0.5, 1.0]),
    normalisation=st.sampled_from(NORMALISATIONS),
    weighed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_adaptive_proxy_anchor_is_its_equation_in_value_and_gradient(
    sizes, one_a_class, margin_of, kappa, normalisation, weighed
) -> None:
    drawn = draw(**sizes)
    margins = drawn.margins if one_a_class else drawn.margins[0]
    inputs, labels = (drawn.embeddings, drawn.proxies, margins), drawn.labels.tolist()
    options = {"alpha": 32.0, "kappa": kappa, "margin_of": margin_of, "negative_normalisation": normalisation}

    def loss(embeddings, proxies, margins, labels, **options):
        return adaptive_proxy_anchor_loss(embeddings, proxies, labels, margins, **options)

    negative = drawn.weights.flip(0)
    told = options | (
        {"weights": drawn.weights.tolist(), "negative_weights": negative.tolist()} if weighed else {}
    )
    options |= {"weights": drawn.weights, "negative_weights": negative} if weighed else {}
    assert_is_the_equation(
        value_and_gradients(loss, inputs, drawn.labels, **options),
        value=oracle.adaptive_proxy_anchor(*(tensor.tolist() for tensor in inputs), labels, **told),
        gradients=oracle.gradients(oracle.adaptive_proxy_anchor, inputs, labels, **told),
    )


@pytest.mark.parametrize("margin_of", OWNERS)
@pytest.mark.parametrize("one_a_class", [False, True])
def test_gradients_agree_with_finite_differences(one_a_class: bool, margin_of: str) -> None:
    drawn = draw(3, batch=5, classes=3, width=4)
    margins = drawn.margins if one_a_class else drawn.margins[0].clone()
    inputs = tuple(tensor.requires_grad_() for tensor in (drawn.embeddings, drawn.proxies, margins))
    assert torch.autograd.gradcheck(
        lambda x, p, m: adaptive_proxy_anchor_loss(x, p, drawn.labels, m, alpha=4.0, margin_of=margin_of), inputs
    )


@pytest.mark.parametrize("margin_of", OWNERS)
@pytest.mark.parametrize("one_a_class", [False, True])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_a_frozen_margin_gives_proxy_anchor_and_kappa_over_the_margin(
    normalisation: str, one_a_class: bool, margin_of: str
) -> None:
    drawn = draw(5, batch=12, classes=4, width=6)
    inputs = (drawn.embeddings, drawn.proxies)
    margins = torch.full((4,) if one_a_class else (), 0.17, dtype=torch.float64)
    value, *gradients = value_and_gradients(
        adaptive_proxy_anchor_loss, inputs, drawn.labels,
        margins=margins, kappa=0.3, margin_of=margin_of, negative_normalisation=normalisation,
    )  # fmt: skip
    plain = value_and_gradients(
        proxy_anchor_loss, inputs, drawn.labels, delta=0.17, negative_normalisation=normalisation
    )
    for got, wanted in zip((value - 0.3 / 0.17, *gradients), plain, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_one_margin_moves_like_all_class_margins_together() -> None:
    drawn = draw(6, batch=12, classes=4, width=6)

    def by_margin(margins, labels):
        return adaptive_proxy_anchor_loss(drawn.embeddings, drawn.proxies, labels, margins)

    single = value_and_gradients(by_margin, [torch.tensor(0.1, dtype=torch.float64)], drawn.labels)
    each = value_and_gradients(by_margin, [torch.full((4,), 0.1, dtype=torch.float64)], drawn.labels)
    torch.testing.assert_close(single[0], each[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(single[1], each[1].sum(), rtol=1e-12, atol=0)


def test_a_negative_pair_has_the_margin_of_its_proxy_or_of_its_sample_as_asked() -> None:
    drawn = draw(15, batch=8, classes=3, width=4)
    drawn.labels[:] = 0  # a proxy of class 1 or 2 meets negatives alone

    def gradient_of(margin_of: str) -> torch.Tensor:
        return value_and_gradients(
            lambda margins, labels: adaptive_proxy_anchor_loss(
                drawn.embeddings, drawn.proxies, labels, margins, kappa=0.0, margin_of=margin_of
            ),
            [drawn.margins],
            drawn.labels,
        )[1]

    assert (gradient_of("proxy")[1:] > 0).all()
    assert not gradient_of("sample")[1:].any()


def test_an_empty_batch_leaves_the_last_term_alone() -> None:
    drawn = draw(4, batch=0, classes=3, width=4)
    value, _, by_proxy = value_and_gradients(
        adaptive_proxy_anchor_loss,
        (drawn.embeddings, drawn.proxies),
        drawn.labels,
        margins=drawn.margins,
        kappa=0.7,
    )
    assert float(value) == pytest.approx(0.7 / float(drawn.margins.mean()), rel=1e-14)
    assert not by_proxy.any()


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 1)])
def test_margins_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    drawn = draw(4, batch=2, classes=3, width=4)
    with pytest.raises(ValueError, match=r"shape \(\) or \(3,\), got \("):
        adaptive_proxy_anchor_loss(drawn.embeddings, drawn.proxies, drawn.labels, torch.full(shape, 0.1))


@pytest.mark.parametrize("delta", [1e-4, 0.1, 1.0, 200.0])
@pytest.mark.parametrize(("margins", "shape"), [("single", ()), ("per-class", (3,))])
def test_the_margins_start_at_delta(margins: str, shape: tuple[int, ...], delta: float) -> None:
    loss = make_loss("adaptive-proxy-anchor", delta=delta, margins=margins)
    torch.testing.assert_close(loss.margins.detach(), torch.full(shape, delta), rtol=1e-5, atol=0)


@pytest.mark.parametrize("margins", ["single", "per-class"])
def test_margins_stay_positive_however_large_the_steps(margins: str) -> None:
    loss = make_loss("adaptive-proxy-anchor", margins=margins, kappa=0.0)  # nothing keeps them from 0
    optimizer = torch.optim.AdamW(loss.parameter_groups(proxy_lr=1.0, weight_decay=0.0))
    drawn = draw(16, batch=9, classes=3, width=4)
    for _ in range(30):
        optimizer.zero_grad()
        loss(drawn.embeddings.float(), drawn.batch).backward()
        optimizer.step()
    assert (loss.margins > 0).all()
    assert (loss.margins < 1e-3).all(), "they were driven towards 0"


def test_weight_decay_does_not_reach_the_margins() -> None:
    loss = make_loss("adaptive-proxy-anchor", margins="per-class")
    optimizer = torch.optim.AdamW(loss.parameter_groups(proxy_lr=0.1, weight_decay=0.5))
    margins, proxies = loss.margins.detach(), loss.proxies.detach().clone()
    for parameter in loss.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(loss.margins, margins)
    torch.testing.assert_close(loss.proxies.detach(), proxies * (1 - 0.1 * 0.5))


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("margin_of", OWNERS)
def test_the_module_passes_every_option_on(margin_of: str, normalisation: str) -> None:
    drawn = draw(14, batch=6, classes=3, width=4)
    loss = make_loss(
        "adaptive-proxy-anchor", alpha=7.0, delta=0.3, negative_normalisation=normalisation,
        margins="per-class", margin_of=margin_of, kappa=0.2,
    ).double()  # fmt: skip
    with torch.no_grad():
        loss.free_margins.copy_(drawn.margins.expm1().log())
    expected = adaptive_proxy_anchor_loss(
        drawn.embeddings, loss.proxies, drawn.labels, drawn.margins,
        alpha=7.0, kappa=0.2, margin_of=margin_of, negative_normalisation=normalisation,
    )  # fmt: skip
    torch.testing.assert_close(loss(drawn.embeddings, drawn.batch), expected, rtol=1e-12, atol=0)
