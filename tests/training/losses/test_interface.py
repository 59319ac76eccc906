"""What the trainer may rely on with any loss that has its own proxies, or only pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.losses.draws import draw, make_loss
from training.losses.interface import Batch, average_losses

WITH_PROXIES = ("spa", "proxy-anchor", "adaptive-proxy-anchor", "proxy-nca")
ALL = (*WITH_PROXIES, "multi-similarity")


@pytest.mark.parametrize("kind", ALL)
def test_the_norm_of_embeddings_and_proxies_does_not_matter(kind: str) -> None:
    drawn = draw(13, batch=8, classes=3, width=4)
    loss = make_loss(kind, classes=3, width=4).double()
    value = loss(drawn.embeddings, drawn.batch)
    if kind in WITH_PROXIES:
        loss.proxies.data /= 3
    scales = torch.arange(1, 9, dtype=torch.float64)[:, None]
    torch.testing.assert_close(loss(scales * drawn.embeddings, drawn.batch), value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", WITH_PROXIES)
def test_proxies_start_at_the_class_means_and_those_without_one_stay(kind: str) -> None:
    loss, untouched = (make_loss(kind, classes=4, width=3) for _ in range(2))
    means = torch.tensor([[0.0, 0.6, 0.8], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    loss.start_at(means)
    assert torch.equal(loss.proxies[[0, 2]], means[[0, 2]])
    assert torch.equal(loss.proxies[[1, 3]], untouched.proxies[[1, 3]])
    assert isinstance(loss.proxies, torch.nn.Parameter)
    assert loss.proxies.requires_grad


@settings(deadline=None, max_examples=60)
@given(
    pairs=st.lists(
        st.tuples(st.floats(-100, 100), st.one_of(st.just(0.0), st.floats(1e-6, 5))), min_size=1, max_size=8
    )
)
def test_the_weighted_average_is_the_sum_of_products_over_the_sum_of_weights(
    pairs: list[tuple[float, float]],
) -> None:
    losses, weights = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    total, weight_sum = 0.0, 0.0
    for loss, weight in pairs:
        total += weight * loss
        weight_sum += weight
    expected = total / weight_sum if weight_sum else 0.0
    assert float(average_losses(losses, weights)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_one_are_no_weights(dtype: torch.dtype) -> None:
    losses = torch.tensor([3.0, -1.0, 0.25, 7.0], dtype=dtype)
    assert torch.equal(average_losses(losses, torch.ones(4)), average_losses(losses, None))
    assert average_losses(losses, torch.ones(4)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_zero_cost_nothing_and_move_nothing(dtype: torch.dtype) -> None:
    losses = torch.tensor([3.0, 1e6], dtype=dtype, requires_grad=True)
    value = average_losses(losses, torch.zeros(2))
    value.backward()
    assert value.item() == 0
    assert losses.grad.tolist() == [0, 0]


@pytest.mark.parametrize("weights", [None, torch.empty(0)])
def test_the_average_of_an_empty_batch_is_zero(weights: torch.Tensor | None) -> None:
    assert float(average_losses(torch.empty(0), weights)) == 0


@pytest.mark.parametrize("kind", ["proxy-nca", "multi-similarity"])
def test_a_sample_weighs_in_the_loss_as_its_weight_says(kind: str) -> None:
    drawn = draw(17, batch=8, classes=3, width=4)
    loss, weights = make_loss(kind, classes=3, width=4), torch.tensor([1.0, 0.0, 0.5, 2.0, 0.0, 1.0, 0.25, 3.0])
    batch = Batch(drawn.labels, torch.arange(8), weights=weights)
    value = loss(drawn.embeddings, batch)
    assert not torch.isclose(value, loss(drawn.embeddings, drawn.batch))
    again = loss(drawn.embeddings, Batch(drawn.labels, torch.arange(8), weights=7 * weights))
    torch.testing.assert_close(again, value, msg="only the shares of weights matter")


@pytest.mark.parametrize("kind", ["proxy-nca", "multi-similarity"])
def test_a_batch_that_nobody_believes_has_zero_gradients(kind: str) -> None:
    drawn = draw(18, batch=6, classes=3, width=4)
    loss, embeddings = make_loss(kind, classes=3, width=4), drawn.embeddings.float().requires_grad_()
    value = loss(embeddings, Batch(drawn.labels, torch.arange(6), weights=torch.zeros(6)))
    value.backward()
    assert float(value.detach()) == 0
    for tensor in (embeddings, *loss.parameters()):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))
