"""ProcSim against loops over its equations, its claims as properties, and what its parts may and may not touch."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.conftest import tries
from tests.oracles import confidence_losses as oracle
from tests.oracles.losses import multi_similarity_samples, proxy_nca_samples
from tests.training.losses.draws import make_loss
from training.losses.interface import Batch
from training.losses.multi_similarity import multi_similarity_losses
from training.losses.procsim import ProcSim, otsu_threshold, procsim_confidences
from training.losses.proxy_nca import proxy_nca_losses
from training.options.losses import PairMining

MS = {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1}
BASES = ("multi-similarity", "proxy-nca")
CLASSES, WIDTH = 3, 4
ON_TENSORS = {"exp": torch.exp, "log": torch.log}

# exact in float64, and so are their midpoints and shifts
losses_of_a_batch = st.lists(st.integers(0, 1024).map(lambda number: number / 64), min_size=4, max_size=12)


def make_procsim(**options: Any) -> ProcSim:
    return make_loss("procsim", **options).double()


def draw_batch(seed: int, *, batch: int, classes: int = CLASSES, width: int = WIDTH) -> tuple[Tensor, Batch]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(batch, width, dtype=torch.float64, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    return embeddings.requires_grad_(), Batch(labels=labels)


def confidences_of(losses: list[float], *, lambda_: float = 0.1) -> Tensor:
    batch = torch.tensor(losses, dtype=torch.float64)
    return procsim_confidences(batch, otsu_threshold(batch), lambda_=lambda_)


@given(losses=losses_of_a_batch, shift=st.integers(-6400, 6400), lambda_=st.sampled_from([1e-6, 0.01, 0.1, 10.0, 1e6]))
@pytest.mark.deep
@settings(max_examples=tries(50, deep=200), deadline=None)
def test_confidences_are_equation_3_and_keep_the_papers_five_claims(losses, shift: int, lambda_: float) -> None:
    sigma, tau = confidences_of(losses, lambda_=lambda_), oracle.otsu(losses)
    expected = [oracle.procsim_confidence(loss, tau, lambda_=lambda_) for loss in losses]
    torch.testing.assert_close(sigma, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert torch.equal(sigma, confidences_of([loss + shift / 64 for loss in losses], lambda_=lambda_)), "claim 1"
    assert (confidences_of(sorted(losses), lambda_=lambda_).diff() <= 0).all(), "claim 2"
    assert ((sigma >= 0) & (sigma <= 1)).all(), "claim 3"
    clean = torch.tensor(losses, dtype=torch.float64) <= tau
    for tiny in (1e-300, 5e-324):  # the second overflows
        sigma = confidences_of(losses, lambda_=tiny)
        assert (sigma[clean] == 1).all(), "claim 4"
        assert (sigma[~clean] < 1e-200).all(), "claim 4"
    for huge in (1e30, math.inf):
        assert (confidences_of(losses, lambda_=huge) == 1).all(), "claim 5"


@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 7),
    base=st.sampled_from(BASES),
    lambda_=st.sampled_from([0.01, 0.1, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_procsim_is_equation_4_in_value_and_gradient(seed: int, batch: int, base: str, lambda_: float) -> None:
    loss = make_procsim(procsim_base=base, procsim_lambda=lambda_, procsim_scale=2.0)
    embeddings, given_batch = draw_batch(seed, batch=batch)
    value = loss(embeddings, given_batch)
    value.backward()

    labels = given_batch.labels.tolist()
    fixed = embeddings.detach().unbind()
    noise = proxy_nca_samples(fixed, loss.proxies.detach(), labels, scale=2.0, **ON_TENSORS)
    tau = oracle.otsu([float(n) for n in noise]) if batch >= 4 else math.inf
    sigma = [oracle.procsim_confidence(float(n), tau, lambda_=lambda_) for n in noise]

    def equation_4(x, *base_proxies):
        if base_proxies:
            terms = proxy_nca_samples(x, base_proxies[0], labels, scale=8.0, **ON_TENSORS)
        else:
            terms = multi_similarity_samples(x, labels, **MS, **ON_TENSORS)
        total = torch.zeros((), dtype=torch.float64)  # the value even of a batch without pairs
        return (total + sum(s * term for s, term in zip(sigma, terms, strict=True))) / batch

    trained = [loss.base_proxies] if base == "proxy-nca" else []
    expected, gradients = oracle.value_and_gradients(equation_4, embeddings, *trained)
    assert value.item() == pytest.approx(expected, abs=1e-10)
    for tensor, gradient in zip([embeddings, *trained], gradients, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, rtol=1e-10, atol=1e-10)

    _, (by_proxy,) = oracle.value_and_gradients(
        lambda p: sum(proxy_nca_samples(fixed, p, labels, scale=2.0, **ON_TENSORS)) / batch, loss.proxies
    )
    torch.testing.assert_close(loss.proxies.grad, by_proxy, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("base", BASES)
def test_a_huge_lambda_is_plain_training(base: str) -> None:
    embeddings, batch = draw_batch(1, batch=12)
    loss = make_procsim(procsim_base=base, procsim_lambda=1e300)
    if base == "proxy-nca":
        plain = proxy_nca_losses(embeddings, loss.base_proxies, batch.labels, scale=8.0).mean()
    else:
        plain = multi_similarity_losses(embeddings, batch.labels, PairMining()).mean()
    value = loss(embeddings, batch)
    torch.testing.assert_close(value, plain, rtol=1e-14, atol=0)
    for got, wanted in zip(torch.autograd.grad(value, embeddings), torch.autograd.grad(plain, embeddings), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-15)


def test_the_proxies_that_find_noise_are_trained_as_by_an_adam_of_their_own() -> None:
    loss = make_procsim(procsim_base="proxy-nca")
    groups = loss.parameter_groups(proxy_lr=0.5, weight_decay=0.1)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(1e-3, 0.0), (0.5, 0.1)]
    assert [id(p) for group in groups for p in group["params"]] == [id(loss.proxies), id(loss.base_proxies)]

    alone = nn.Parameter(loss.proxies.detach().clone())
    together, independent = torch.optim.AdamW(groups), torch.optim.Adam([alone])  # with the paper's defaults
    for step in range(4):
        embeddings, batch = draw_batch(step, batch=8)
        together.zero_grad()
        loss(embeddings, batch).backward()
        together.step()
        independent.zero_grad()
        proxy_nca_losses(embeddings.detach(), alone, batch.labels, scale=1.0).mean().backward()
        independent.step()
    torch.testing.assert_close(loss.proxies, alone, rtol=1e-12, atol=0)


eighths = st.integers(0, 128).map(lambda number: number / 8)


@given(losses=st.lists(st.one_of(eighths, st.sampled_from([0.0, 0.5, 2.0])), min_size=4, max_size=12))
@pytest.mark.deep
@settings(max_examples=tries(60, deep=300), deadline=None)
def test_otsu_is_the_first_minimum_of_algorithm_1(losses) -> None:
    batch = torch.tensor(losses, dtype=torch.float64)
    assert float(otsu_threshold(batch)) == oracle.otsu(losses)


@given(seed=st.integers(0, 2**31), size=st.integers(4, 60), offset=st.sampled_from([0.0, 1e3, -1e6]))
@settings(max_examples=40, deadline=None)
def test_otsu_is_algorithm_1_on_arbitrary_losses(seed: int, size: int, offset: float) -> None:
    losses = offset + torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert float(otsu_threshold(losses)) == pytest.approx(oracle.otsu(losses.tolist()), rel=1e-15)


@pytest.mark.parametrize("offset", [0.0, 0.1, 0.7, 1.9])
def test_of_two_thresholds_of_equal_cost_otsu_takes_the_smaller_whatever_the_rounding(offset: float) -> None:
    losses = offset + torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0], dtype=torch.float64)
    assert float(otsu_threshold(losses)) == pytest.approx(offset + 0.5)


def test_a_threshold_needs_four_losses() -> None:
    with pytest.raises(ValueError, match="4 of them, got 3"):
        otsu_threshold(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_threshold_is_a_constant_of_the_type_of_the_losses(dtype: torch.dtype) -> None:
    found = otsu_threshold(torch.arange(9, dtype=dtype, requires_grad=True))
    assert (found.shape, found.dtype) == ((), dtype)
    assert not found.requires_grad
