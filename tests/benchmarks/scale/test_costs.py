"""Costs that grow with work: fitting them, what they come to, and how far a limit reaches."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.scale.costs import APPROXIMATE, GROWTHS, Cost, fit_cost
from index.vectors.kinds.kind import Wanted
from index.vectors.kinds.registry import KINDS

WIDTHS = (128, 64)


@pytest.mark.parametrize("growth", GROWTHS)
def test_a_cost_that_was_made_up_is_found_again_whatever_it_grows_with(growth: str) -> None:
    true = Cost(3.0, 2e-6, growth)
    found = fit_cost({images: true.at(images, WIDTHS) for images in (10_000, 30_000)}, WIDTHS, growth=growth)
    for images in (10_000, 1_000_000):
        assert found.at(images, WIDTHS) == pytest.approx(true.at(images, WIDTHS), rel=1e-6)


@pytest.mark.parametrize("growth", GROWTHS)
def test_no_work_falls_with_more_images_or_wider_vectors(growth: str) -> None:
    work = GROWTHS[growth]
    sizes = [10**exponent for exponent in range(4, 10)]
    assert all(work(more, WIDTHS) > work(less, WIDTHS) for less, more in pairwise(sizes))
    assert work(10**6, (256, 128)) >= work(10**6, WIDTHS)


def test_a_cost_that_falls_with_more_images_is_taken_for_a_fixed_one() -> None:
    cost = fit_cost({1000: 2.0, 2000: 1.0}, WIDTHS)
    assert cost.each == 0
    assert 1.0 < cost.fixed < 2.0


def test_small_and_large_measurements_count_alike() -> None:
    cost = fit_cost({10: 1.1, 1000: 99.0, 100_000: 10_000.0}, WIDTHS)
    assert cost.at(10, WIDTHS) == pytest.approx(1.1, rel=0.15)


def test_the_plan_of_a_kind_is_that_of_all_outputs_together() -> None:
    for kind in APPROXIMATE:
        own = [KINDS[kind].plan(Wanted(10_000, width))[0].memory_bytes for width in WIDTHS]
        assert GROWTHS[f"{kind} plan"](10_000, WIDTHS) == sum(own)


def test_a_limit_reaches_as_far_as_the_cost_stays_within_it() -> None:
    cost = Cost(1.0, 0.5)
    assert cost.reach(11.0, WIDTHS) == 20
    assert cost.at(20, WIDTHS) <= 11.0 < cost.at(21, WIDTHS)
    assert cost.reach(0.5, WIDTHS) == 0
    assert Cost(1.0, 0.0).reach(2.0, WIDTHS) is None


@pytest.mark.parametrize("measured", [{}, {1000: 1.0}, {1000: 1.0, 2000: 0.0}])
def test_too_little_cannot_be_fitted(measured: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="two numbers of images or more"):
        fit_cost(measured, WIDTHS)


@pytest.mark.parametrize("values", [(-1.0, 1.0, "images"), (1.0, float("nan"), "images"), (1.0, 1.0, "luck")])
def test_what_is_no_cost_is_refused(values: tuple[float, float, str]) -> None:
    with pytest.raises(ValueError, match=r"never below 0|growth must be one of"):
        Cost(*values)
