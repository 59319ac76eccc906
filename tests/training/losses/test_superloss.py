"""SuperLoss against loops over its equations, pytorch-metric-learning, and what its confidences minimise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from tests.oracles import confidence_losses as oracle
from tests.training.losses.draws import make_loss
from training.losses.interface import Batch
from training.losses.superloss import pair_distances, superloss_confidences

UNWEIGHTED = 1e300


def draw_batch(seed: int, *, batch: int, classes: int, width: int = 3) -> tuple[Tensor, Batch]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(batch, width, dtype=torch.float64, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    return embeddings.requires_grad_(), Batch(labels=labels, rows=torch.arange(batch))


@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    classes=st.integers(1, 3),
    lambda_=st.sampled_from([0.05, 1.0]),
    margins=st.sampled_from([(0.0, 1.0), (0.4, 1.5)]),
)
@settings(max_examples=40, deadline=None)
def test_superloss_is_its_equations_over_iterations_in_value_and_gradient(
    seed, sizes, classes, lambda_, margins
) -> None:
    options = {"positive_margin": margins[0], "negative_margin": margins[1]}
    loss = make_loss("superloss", superloss_lambda=lambda_, **options)
    earlier: dict[bool, list[float]] = {True: [], False: []}
    for step, size in enumerate(sizes):
        embeddings, batch = draw_batch(seed + step, batch=size, classes=classes)
        value = loss(embeddings, batch)
        value.backward()
        labels = batch.labels.tolist()
        expected, (gradient,) = oracle.value_and_gradients(
            lambda x, labels=labels: oracle.superloss(x, labels, lambda_=lambda_, earlier=earlier, **options),
            embeddings,
        )
        assert value.item() == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(embeddings.grad, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("margins", [(0.0, 1.0), (0.5, 1.3)])
def test_without_differences_in_confidence_it_is_the_contrastive_loss(margins: tuple[float, float]) -> None:
    embeddings, batch = draw_batch(1, batch=20, classes=4, width=6)
    theirs = ContrastiveLoss(pos_margin=margins[0], neg_margin=margins[1])(embeddings, batch.labels)
    (expected,) = torch.autograd.grad(theirs, embeddings)
    ours = make_loss(
        "superloss", superloss_lambda=UNWEIGHTED, positive_margin=margins[0], negative_margin=margins[1]
    )
    value = ours(embeddings, batch)
    (gradient,) = torch.autograd.grad(value, embeddings)
    torch.testing.assert_close(value, theirs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)


@given(excess=st.floats(-20, 20), lambda_=st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=60, deadline=None)
def test_confidences_minimise_what_defines_them(excess: float, lambda_: float) -> None:
    loss = torch.tensor([excess], dtype=torch.float64)
    sigma = float(superloss_confidences(loss, torch.tensor(0.0), lambda_=lambda_))
    bounded = max(excess, -2 / math.e * lambda_)  # below, there is no minimum, and the confidence stays e

    def cost(s: float) -> float:
        return bounded * s + lambda_ * math.log(s) ** 2

    assert 0 < sigma <= math.e
    assert all(
        cost(sigma) <= cost(sigma * f) + 1e-12 * lambda_ for f in (0.9, 0.999, 1.001) if sigma * f <= math.e
    )


def test_confidences_are_one_at_the_threshold_and_e_far_below_it() -> None:
    losses = torch.tensor([2.0, -50.0, 1e30], dtype=torch.float64)
    at, below, above = superloss_confidences(losses, torch.tensor(2.0), lambda_=1.0).tolist()
    assert (at, below) == (1.0, math.e)
    assert 0 < above < 1e-27


def test_pairs_that_cost_nothing_count_in_the_average_but_not_in_the_mean() -> None:
    angles = torch.tensor([0.0, 0.1, math.pi], dtype=torch.float64)
    embeddings = torch.stack([angles.cos(), angles.sin()], dim=1)
    loss = make_loss("superloss", superloss_lambda=UNWEIGHTED)
    value = loss(embeddings, Batch(labels=torch.arange(3), rows=torch.arange(3)))
    close = 1 - 2 * math.sin(0.05)  # the only pair within the margin, once from either side
    assert value.item() == pytest.approx(close, rel=1e-12)
    assert float(loss.negative_average.sum) == pytest.approx(2 * close, rel=1e-12)
    assert float(loss.negative_average.count) == 6


@pytest.mark.parametrize(("labels", "pairs"), [([0, 1, 2], (0, 6)), ([0, 0, 0], (6, 0)), ([0], (0, 0))])
def test_a_kind_of_pair_that_the_batch_lacks_adds_exactly_nothing(labels: list[int], pairs) -> None:
    embeddings, _ = draw_batch(4, batch=len(labels), classes=1)
    loss = make_loss("superloss")
    value = loss(embeddings, Batch(labels=torch.tensor(labels), rows=torch.arange(len(labels))))
    value.backward()
    assert embeddings.grad.isfinite().all()
    assert (float(loss.positive_average.count), float(loss.negative_average.count)) == pairs
    assert any(pairs) or (value.item() == 0.0 and not embeddings.grad.any())


def test_distances_of_near_duplicates_keep_their_digits_in_float32() -> None:
    angles = torch.tensor([0.0, 1e-4], dtype=torch.float64)
    embeddings = torch.stack([angles.cos(), angles.sin()], dim=1).float()
    assert float(pair_distances(embeddings)[0, 1]) == pytest.approx(1e-4, rel=1e-3)
