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


@given(losses=st.lists(eighths, min_size=4, max_size=12))
@pytest.mark.deep
@settings(max_examples=tries(50, deep=200), deadline=None)
def test_otsu_is_the_first_minimum_of_algorithm_1_ties_included(losses: list[float]) -> None:
    assert float(otsu_threshold(torch.tensor(losses, dtype=torch.float64))) == oracle.otsu(losses)


@given(losses=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=4, max_size=9))
@pytest.mark.deep
@settings(max_examples=tries(25, deep=100), deadline=None)
def test_otsu_counts_losses_on_a_threshold_on_both_sides(losses: list[float]) -> None:
    assert float(otsu_threshold(torch.tensor(losses))) == oracle.otsu(losses)


@given(seed=st.integers(0, 2**31), size=st.integers(4, 60), offset=st.sampled_from([0.0, 1e3, -1e6]))
@settings(max_examples=40, deadline=None)
def test_otsu_is_algorithm_1_on_arbitrary_losses(seed: int, size: int, offset: float) -> None:
    losses = offset + torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert float(otsu_threshold(losses)) == pytest.approx(oracle.otsu(losses.tolist()), rel=1e-15)


def test_otsu_keeps_at_least_two_losses_on_each_side() -> None:
    assert float(otsu_threshold(torch.tensor([0.0, 0.1, 0.2, 100.0]))) == pytest.approx(0.15)


def test_the_variance_of_a_side_is_that_of_a_sample() -> None:
    # 0 1 2 | 4 5 10 costs 3 * 2/2 + 3 * (62/3)/2 = 34, and 0 1 2 4 | 5 10 costs 4 * 8.75/3 + 2 * 12.5 = 36.7; with
    # variances of populations it were 22.7 and 21.25.
    assert float(otsu_threshold(torch.tensor([0.0, 1.0, 2.0, 4.0, 5.0, 10.0]))) == 3.0


@pytest.mark.parametrize("offset", [number / 10 for number in range(20)])
def test_of_two_thresholds_of_equal_cost_otsu_takes_the_smaller_whatever_the_rounding(offset: float) -> None:
    losses = offset + torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0], dtype=torch.float64)
    assert float(otsu_threshold(losses)) == pytest.approx(offset + 0.5)


def test_otsu_of_equal_losses_is_their_value() -> None:
    assert float(otsu_threshold(torch.full((7,), 0.3))) == pytest.approx(0.3, rel=1e-7)


def test_thresholds_need_four_losses() -> None:
    for threshold in (otsu_threshold, mixture_threshold):
        with pytest.raises(ValueError, match="4 of them, got 3"):
            threshold(torch.ones(3))


@pytest.mark.parametrize("threshold", [otsu_threshold, mixture_threshold, RunningAverage()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_are_constants_of_the_type_of_the_losses(threshold, dtype: torch.dtype) -> None:
    found = threshold(two_groups(0).to(dtype).requires_grad_())
    assert found.shape == ()
    assert found.dtype == dtype
    assert not found.requires_grad


@pytest.mark.parametrize("seed", range(5))
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


def test_two_values_are_split_in_the_middle_by_the_mixture() -> None:
    losses = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert float(mixture_threshold(losses)) == pytest.approx(0.5, abs=1e-12)


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


@given(losses=st.lists(eighths, min_size=4, max_size=12))
@pytest.mark.deep
@settings(max_examples=tries(25, deep=100), deadline=None)
def test_the_mixture_lies_among_the_losses(losses: list[float]) -> None:
    threshold = float(mixture_threshold(torch.tensor(losses, dtype=torch.float64)))
    assert min(losses) - 1e-9 <= threshold <= max(losses) + 1e-9


def test_the_running_average_is_that_of_all_values_so_far() -> None:
    average = RunningAverage()
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([6.0])
    assert float(average(torch.zeros(0))) == 0.0
    assert float(average(first)) == 1.5
    assert float(average(torch.zeros(0))) == 1.5
    assert float(average(second)) == 3.0


def test_a_resumed_average_goes_on_where_it_was() -> None:
    average, resumed = RunningAverage(), RunningAverage()
    average(torch.rand(1000, dtype=torch.float64))
    resumed.load_state_dict(average.state_dict())
    more = torch.rand(10, dtype=torch.float64)
    assert torch.equal(average(more), resumed(more))
    assert resumed.sum.dtype == torch.float64


def test_evaluation_adds_nothing_to_the_average() -> None:
    average = RunningAverage()
    average(torch.ones(2))
    average.eval()
    assert float(average(torch.full((100,), 9.0))) == 1.0
