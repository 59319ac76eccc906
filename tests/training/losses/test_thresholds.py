"""Otsu's threshold against Algorithm 1 in exact arithmetic, the mixture against scikit-learn, the average as such."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from torch import Tensor

from tests.deep import tries
from tests.oracles import confidence_losses as oracle
from training.losses.thresholds import RunningAverage, find_crossing, mixture_threshold, otsu_threshold

eighths = st.integers(0, 128).map(lambda number: number / 8)


def two_groups(seed: int, *, low: float = 1.0, high: float = 6.0, sizes: tuple[int, int] = (60, 40)) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(sum(sizes), dtype=torch.float64, generator=generator)
    return torch.cat([low + 0.4 * noise[: sizes[0]], high + 0.8 * noise[sizes[0] :]])


@given(losses=st.lists(st.one_of(eighths, st.sampled_from([0.0, 0.5, 2.0])), min_size=4, max_size=12))
@pytest.mark.deep
@settings(max_examples=tries(60, deep=300), deadline=None)
def test_otsu_is_the_first_minimum_of_algorithm_1_and_the_mixture_lies_among_the_losses(losses) -> None:
    batch = torch.tensor(losses, dtype=torch.float64)
    assert float(otsu_threshold(batch)) == oracle.otsu(losses)
    assert min(losses) - 1e-9 <= float(mixture_threshold(batch)) <= max(losses) + 1e-9


@given(seed=st.integers(0, 2**31), size=st.integers(4, 60), offset=st.sampled_from([0.0, 1e3, -1e6]))
@settings(max_examples=40, deadline=None)
def test_otsu_is_algorithm_1_on_arbitrary_losses(seed: int, size: int, offset: float) -> None:
    losses = offset + torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert float(otsu_threshold(losses)) == pytest.approx(oracle.otsu(losses.tolist()), rel=1e-15)


@pytest.mark.parametrize("offset", [0.0, 0.1, 0.7, 1.9])
def test_of_two_thresholds_of_equal_cost_otsu_takes_the_smaller_whatever_the_rounding(offset: float) -> None:
    losses = offset + torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0], dtype=torch.float64)
    assert float(otsu_threshold(losses)) == pytest.approx(offset + 0.5)


def test_thresholds_need_four_losses() -> None:
    for threshold in (otsu_threshold, mixture_threshold):
        with pytest.raises(ValueError, match="4 of them, got 3"):
            threshold(torch.ones(3))


@pytest.mark.parametrize("threshold", [otsu_threshold, mixture_threshold, RunningAverage()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_are_constants_of_the_type_of_the_losses(threshold, dtype: torch.dtype) -> None:
    found = threshold(two_groups(0).to(dtype).requires_grad_())
    assert (found.shape, found.dtype) == ((), dtype)
    assert not found.requires_grad


@pytest.mark.parametrize("seed", range(3))
def test_the_mixture_crosses_where_scikit_learns_does(seed: int) -> None:
    losses = two_groups(seed, high=4.0)  # near enough for the responsibilities of both to matter
    theirs = GaussianMixture(2, tol=1e-12, max_iter=1000, reg_covar=1e-12, random_state=0).fit(losses[:, None])
    grid = np.linspace(*np.sort(theirs.means_.ravel()), 200_001)
    low = int(theirs.means_.ravel().argmin())
    crossing = grid[np.abs(theirs.predict_proba(grid[:, None])[:, low] - 0.5).argmin()]
    assert float(mixture_threshold(losses)) == pytest.approx(crossing, abs=1e-4)


def test_the_mixture_moves_and_scales_with_the_losses() -> None:
    losses = two_groups(3)
    threshold = mixture_threshold(losses)
    torch.testing.assert_close(mixture_threshold(10 + 1e3 * losses), 10 + 1e3 * threshold, rtol=1e-9, atol=0)


positive = st.floats(0.05, 5)


@given(
    means=st.tuples(st.floats(-3, 3), st.floats(-3, 3)), variances=st.tuples(positive, positive), share=positive
)
@pytest.mark.deep
@settings(max_examples=tries(25, deep=100), deadline=None)
def test_where_gaussians_cross_between_their_means_both_are_as_probable(means, variances, share) -> None:
    weights = (share / (1 + share), 1 / (1 + share))
    place = float(
        find_crossing(*(torch.tensor(values, dtype=torch.float64) for values in (means, variances, weights)))
    )

    def advantage(x: float) -> float:  # of the Gaussian of the lower mean
        (_, *low), (_, *high) = sorted(
            (mean, math.log(weight) - math.log(variance) / 2 - (x - mean) ** 2 / (2 * variance))
            for mean, variance, weight in zip(means, variances, weights, strict=True)
        )
        return low[0] - high[0]

    if means[0] != means[1] and advantage(min(means)) > 1e-9 and advantage(max(means)) < -1e-9:
        assert advantage(place) == pytest.approx(0, abs=1e-9)
    elif advantage(min(means)) < -1e-9 or advantage(max(means)) > 1e-9:
        assert place == pytest.approx(sum(means) / 2)


def test_the_running_average_is_that_of_all_values_so_far_resumed_or_not_and_evaluation_adds_none() -> None:
    average, resumed = RunningAverage(), RunningAverage()
    none = torch.zeros(0)
    assert [float(average(values)) for values in (none, torch.tensor([1.0, 2.0]), none)] == [0, 1.5, 1.5]
    resumed.load_state_dict(average.state_dict())
    assert resumed.sum.dtype == torch.float64
    assert float(resumed(torch.tensor([6.0]))) == float(average(torch.tensor([6.0]))) == 3.0
    average.eval()
    assert float(average(torch.full((100,), 9.0))) == 3.0
