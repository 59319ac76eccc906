"""The losses against loops over their equations, against each other, and at the edges of their domain."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.oracles import losses as oracle
from training.config import LossConfig
from training.losses.anchor import UNIT_PROXIES_ABOVE, initial_proxies
from training.losses.methods import ProxyLoss
from training.losses.proxy_anchor import proxy_anchor_loss
from training.losses.smooth_proxy_anchor import positive_proxies, smooth_proxy_anchor_loss

SPA = {"alpha": 32.0, "delta": 0.1, "lambda_": 0.1, "beta": 100.0}
ANCHOR = {"alpha": 32.0, "delta": 0.1}
NORMALISATIONS = ("all", "present")


def draw_batch(seed: int, *, batch: int, classes: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Float64 embeddings, proxies, confidences around lambda as often as anywhere, and labels."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(batch, width, dtype=torch.float64, generator=generator)
    proxies = torch.randn(classes, width, dtype=torch.float64, generator=generator)
    anywhere = torch.rand(batch, classes, dtype=torch.float64, generator=generator)
    near = 0.1 + 0.03 * torch.randn(batch, classes, dtype=torch.float64, generator=generator)
    chosen = torch.rand(batch, classes, generator=generator) < 0.5
    confidences = torch.where(chosen, near, anywhere).clamp(0, 1)
    labels = torch.randint(classes, (batch,), generator=generator)
    return embeddings, proxies, confidences, labels


def value_and_gradients(
    loss: Callable[..., Tensor], embeddings: Tensor, proxies: Tensor, target: Tensor, **options: object
) -> tuple[Tensor, Tensor, Tensor]:
    x, p = embeddings.detach().clone().requires_grad_(), proxies.detach().clone().requires_grad_()
    value = loss(x, p, target, **options)
    return value.detach(), *torch.autograd.grad(value, (x, p))


batches = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "batch": st.integers(1, 5),
        "classes": st.integers(1, 4),
        "width": st.integers(2, 4),
    }
)


@given(
    drawn=batches,
    beta=st.sampled_from([1.0, 50.0, 100.0, 200.0]),
    lambda_=st.sampled_from([0.075, 0.1, 0.5]),
    normalisation=st.sampled_from(NORMALISATIONS),
)
@settings(max_examples=40, deadline=None)
def test_smooth_proxy_anchor_is_its_equation_in_value_and_gradient(drawn, beta, lambda_, normalisation) -> None:
    embeddings, proxies, confidences, _ = draw_batch(**drawn)
    options = {**ANCHOR, "beta": beta, "lambda_": lambda_, "negative_normalisation": normalisation}
    value, *gradient = value_and_gradients(smooth_proxy_anchor_loss, embeddings, proxies, confidences, **options)

    expected = oracle.smooth_proxy_anchor(embeddings.tolist(), proxies.tolist(), confidences.tolist(), **options)
    assert abs(float(value) - expected) <= 1e-10
    slow = oracle.gradients(oracle.smooth_proxy_anchor, embeddings, proxies, confidences.tolist(), **options)
    for got, wanted in zip(gradient, slow, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@given(drawn=batches, normalisation=st.sampled_from(NORMALISATIONS))
@settings(max_examples=40, deadline=None)
def test_proxy_anchor_is_its_equation_in_value_and_gradient(drawn, normalisation) -> None:
    embeddings, proxies, _, labels = draw_batch(**drawn)
    options = {**ANCHOR, "negative_normalisation": normalisation}
    value, *gradient = value_and_gradients(proxy_anchor_loss, embeddings, proxies, labels, **options)

    expected = oracle.proxy_anchor(embeddings.tolist(), proxies.tolist(), labels.tolist(), **options)
    assert abs(float(value) - expected) <= 1e-10
    slow = oracle.gradients(oracle.proxy_anchor, embeddings, proxies, labels.tolist(), **options)
    for got, wanted in zip(gradient, slow, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_gradients_agree_with_finite_differences(normalisation: str) -> None:
    embeddings, proxies, confidences, labels = draw_batch(3, batch=5, classes=3, width=4)
    inputs = (embeddings.requires_grad_(), proxies.requires_grad_())
    options = {"alpha": 4.0, "delta": 0.1, "negative_normalisation": normalisation}
    assert torch.autograd.gradcheck(
        lambda x, p: smooth_proxy_anchor_loss(x, p, confidences, lambda_=0.1, beta=100.0, **options), inputs
    )
    assert torch.autograd.gradcheck(lambda x, p: proxy_anchor_loss(x, p, labels, **options), inputs)


@pytest.mark.parametrize("beta", [1e4, 1e6])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_one_hot_confidences_with_a_sharp_beta_give_proxy_anchor(beta: float, normalisation: str) -> None:
    embeddings, proxies, _, labels = draw_batch(5, batch=12, classes=4, width=6)
    one_hot = nn.functional.one_hot(labels, 4).double()
    smooth = value_and_gradients(
        smooth_proxy_anchor_loss, embeddings, proxies, one_hot,
        **{**SPA, "beta": beta, "negative_normalisation": normalisation},
    )  # fmt: skip
    plain = value_and_gradients(
        proxy_anchor_loss, embeddings, proxies, labels, **ANCHOR, negative_normalisation=normalisation
    )
    for got, wanted in zip(smooth, plain, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_proxy_anchor_agrees_with_pytorch_metric_learning(seed: int) -> None:
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    embeddings, proxies, _, labels = draw_batch(seed, batch=20, classes=6, width=8)
    theirs = ProxyAnchorLoss(num_classes=6, embedding_size=8, margin=0.1, alpha=32).double()
    theirs.proxies = nn.Parameter(proxies.clone())
    x = embeddings.clone().requires_grad_()
    expected = theirs(x, labels)
    expected.backward()

    value, by_embedding, by_proxy = value_and_gradients(proxy_anchor_loss, embeddings, proxies, labels, **ANCHOR)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(by_embedding, x.grad, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(by_proxy, theirs.proxies.grad, rtol=1e-10, atol=1e-10)


def test_without_any_positive_the_loss_is_the_negative_term_alone() -> None:
    embeddings, proxies, _, _ = draw_batch(7, batch=6, classes=3, width=4)
    none = torch.zeros(6, 3, dtype=torch.float64)
    value, *gradient = value_and_gradients(smooth_proxy_anchor_loss, embeddings, proxies, none, **SPA)
    weightless = 1 / (1 + math.exp(100 * 0.1))  # w of confidence 0
    terms = [
        math.log1p(sum((1 - weightless) * math.exp(32 * (s + 0.1)) for s in column))
        for column in (nn.functional.normalize(embeddings) @ nn.functional.normalize(proxies).T).T.tolist()
    ]
    assert float(value) == pytest.approx(sum(terms) / 3, rel=1e-12)
    assert all(g.isfinite().all() for g in gradient)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_with_positives_only_the_negative_term_and_its_gradient_are_exactly_zero(normalisation: str) -> None:
    embeddings, _, _, _ = draw_batch(8, batch=6, classes=3, width=4)
    everything = torch.ones(6, 3, dtype=torch.float64)
    aligned, same = (embeddings[:1].repeat(count, 1) for count in (3, 6))  # every cosine is 1
    value, by_embedding, by_proxy = value_and_gradients(
        smooth_proxy_anchor_loss, same, aligned, everything, **{**SPA, "alpha": 1e4},
        negative_normalisation=normalisation,
    )  # fmt: skip
    assert float(value) == 0.0  # exp(-1e4 * 0.9) is 0: nothing is left of the pull, and there is no push
    assert not by_embedding.any()
    assert not by_proxy.any()


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_an_empty_batch_costs_exactly_nothing(normalisation: str) -> None:
    proxies = torch.randn(3, 4, dtype=torch.float64)
    empty = torch.zeros(0, 4, dtype=torch.float64)
    for loss, target in (
        (smooth_proxy_anchor_loss, torch.zeros(0, 3)),
        (proxy_anchor_loss, torch.zeros(0, dtype=torch.int64)),
    ):
        value, _, by_proxy = value_and_gradients(
            loss, empty, proxies, target, negative_normalisation=normalisation
        )
        assert float(value) == 0.0
        assert not by_proxy.any()


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_a_batch_of_one_is_finite(confidence: float) -> None:
    embeddings, proxies, _, _ = draw_batch(9, batch=1, classes=2, width=3)
    target = torch.full((1, 2), confidence, dtype=torch.float64)
    results = value_and_gradients(smooth_proxy_anchor_loss, embeddings, proxies, target, **SPA)
    assert all(result.isfinite().all() for result in results)


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
    value, *gradient = value_and_gradients(
        smooth_proxy_anchor_loss, embeddings, proxies, confidences, **{**SPA, "beta": 1e4}
    )
    # every proxy has a positive at cosine -1 (32 * 1.1) or 0 and a negative at +1 (32 * 1.1) or 0
    assert float(value) == pytest.approx(2 * 35.2, rel=1e-6)
    assert all(g.isfinite().all() for g in gradient)


def test_under_bfloat16_autocast_the_loss_is_the_float32_loss_of_the_same_numbers() -> None:
    embeddings, proxies, confidences, labels = (
        tensor.float() if tensor.is_floating_point() else tensor
        for tensor in draw_batch(11, batch=16, classes=5, width=8)
    )
    rounded = embeddings.bfloat16()
    for loss, target in ((smooth_proxy_anchor_loss, confidences), (proxy_anchor_loss, labels)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = loss(rounded, proxies, target)
        assert inside.dtype == torch.float32
        assert torch.equal(inside, loss(rounded.float(), proxies, target))


def test_no_gradient_reaches_the_confidences() -> None:
    embeddings, proxies, confidences, _ = draw_batch(12, batch=4, classes=3, width=4)
    confidences.requires_grad_()
    proxies.requires_grad_()
    smooth_proxy_anchor_loss(embeddings, proxies, confidences, **SPA).backward()
    assert confidences.grad is None
    assert proxies.grad is not None


def test_the_norm_of_embeddings_and_proxies_does_not_matter() -> None:
    embeddings, proxies, confidences, _ = draw_batch(13, batch=4, classes=3, width=4)
    value = smooth_proxy_anchor_loss(embeddings, proxies, confidences, **SPA)
    scaled = smooth_proxy_anchor_loss(7 * embeddings, proxies / 3, confidences, **SPA)
    torch.testing.assert_close(value, scaled, rtol=1e-12, atol=0)


def test_initial_proxies_have_the_authors_deviation() -> None:
    proxies = initial_proxies(500, 256, generator=torch.Generator().manual_seed(0))
    assert proxies.shape == (500, 256)
    assert float(proxies.detach().std()) == pytest.approx(math.sqrt(2 / 500), rel=0.01)
    again = initial_proxies(500, 256, generator=torch.Generator().manual_seed(0))
    assert torch.equal(proxies, again)


def test_initial_proxies_above_ten_thousand_classes_have_unit_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    many = initial_proxies(UNIT_PROXIES_ABOVE + 1, 8, generator=generator)
    torch.testing.assert_close(many.detach().norm(dim=1), torch.ones(UNIT_PROXIES_ABOVE + 1))
    few = initial_proxies(UNIT_PROXIES_ABOVE, 8, generator=generator)
    assert float(few.detach().norm(dim=1).max()) < 0.1


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_the_named_losses_pass_every_option_on(normalisation: str) -> None:
    embeddings, _, confidences, labels = draw_batch(14, batch=6, classes=3, width=4)
    options = {"alpha": 7.0, "delta": 0.3, "negative_normalisation": normalisation}
    smooth = {"lambda_": 0.2, "beta": 11.0}
    spa, anchor = (
        ProxyLoss(
            LossConfig(method=method, **options, **smooth),
            class_count=3,
            embedding_dim=4,
            generator=torch.Generator().manual_seed(1),
        ).double()
        for method in ("spa", "proxy-anchor")
    )
    assert torch.equal(
        spa(embeddings, labels=labels, confidences=confidences),
        smooth_proxy_anchor_loss(embeddings, spa.proxies, confidences, **options, **smooth),
    )
    assert torch.equal(
        anchor(embeddings, labels=labels, confidences=None),
        proxy_anchor_loss(embeddings, anchor.proxies, labels, **options),
    )


def test_smooth_proxy_anchor_refuses_to_run_without_confidences() -> None:
    loss = ProxyLoss(LossConfig(), class_count=2, embedding_dim=2, generator=torch.Generator())
    with pytest.raises(ValueError, match="confidence"):
        loss(torch.ones(1, 2), labels=torch.zeros(1, dtype=torch.int64), confidences=None)
