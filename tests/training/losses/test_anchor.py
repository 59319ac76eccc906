"""The sum that every loss is made of, and the proxies they start from."""

from __future__ import annotations

import math

import pytest
import torch

from tests.training.losses.draws import value_and_gradients
from training.losses.anchor import UNIT_PROXIES_ABOVE, initial_proxies, log1p_sum_exp


@pytest.mark.parametrize("dim", [0, 1])
def test_the_sum_runs_over_the_members_along_the_dimension_asked_for(dim: int) -> None:
    logits = torch.tensor([[0.5, -2.0, 3.0], [1.5, 0.25, -1.0]], dtype=torch.float64)
    members = torch.tensor([[True, False, True], [True, True, False]])
    sums = [[1 + math.exp(0.5) + math.exp(1.5), 1 + math.exp(0.25), 1 + math.exp(3.0)],
            [1 + math.exp(0.5) + math.exp(3.0), 1 + math.exp(1.5) + math.exp(0.25)]][dim]  # fmt: skip
    expected = torch.tensor(sums, dtype=torch.float64).log()
    torch.testing.assert_close(log1p_sum_exp(logits, members, dim=dim), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_sum_without_members_is_exactly_zero_with_a_gradient_of_exactly_zero(dim: int) -> None:
    logits = torch.full((2, 3), 1e30)
    value, gradient = value_and_gradients(
        lambda x, members: log1p_sum_exp(x, members, dim=dim).sum(), [logits], torch.zeros(2, 3, dtype=torch.bool)
    )
    assert float(value) == 0.0
    assert not gradient.any()


def test_the_sum_does_not_overflow() -> None:
    logits = torch.tensor([[1e4, 1e4], [-1e4, 1e4]])
    value = log1p_sum_exp(logits, torch.ones(2, 2, dtype=torch.bool))
    torch.testing.assert_close(value, torch.tensor([1e4, 1e4 + math.log(2)]))


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
