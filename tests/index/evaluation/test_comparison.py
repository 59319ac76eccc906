from __future__ import annotations

import doctest
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import index.evaluation.comparison
from index.errors import InputError
from index.evaluation.comparison import Spread, paired_bootstrap, spread
from index.evaluation.metrics import bootstrap_interval


def draw_hits(shape: tuple[int, ...], *, share: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) < share).astype(np.float64)


@given(values=st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_a_spread_is_the_mean_and_the_sample_deviation(values: list[float]) -> None:
    found = spread(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-12)
    assert found.deviation == pytest.approx(statistics.stdev(values), abs=1e-9)
    assert found.count == len(values)


def test_a_spread_of_one_value_is_zero_and_of_none_an_error() -> None:
    assert spread(np.array([0.7])) == Spread(mean=0.7, deviation=0.0, count=1)
    with pytest.raises(InputError, match="at least one value"):
        spread([])


def test_the_difference_agrees_with_a_loop_over_the_same_draws() -> None:
    first, second = draw_hits((3, 40), share=0.6, seed=1), draw_hits((3, 40), share=0.5, seed=2)
    found = paired_bootstrap(first, second, seed=5, resamples=200, level=0.9)
    generator, means = np.random.default_rng(5), []
    mean = (first - second).mean()
    for rows in generator.integers(40, size=(200, 40)):
        means.append(np.mean([first[s, q] - second[s, q] for q in rows for s in range(3)]))
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))
    as_far = sum(abs(m - mean) >= abs(mean) - 1e-12 for m in means)
    assert found.p_value == (1 + as_far) / 201


@pytest.mark.parametrize("draw_seeds", [False, True])
def test_clusters_and_seeds_agree_with_a_loop_over_the_same_draws(draw_seeds: bool) -> None:
    first, second = draw_hits((3, 40), share=0.6, seed=1), draw_hits((3, 40), share=0.5, seed=2)
    clusters = np.random.default_rng(3).choice([7, 2, 9, 4, 30], size=40)  # of unequal sizes, in no order
    found = paired_bootstrap(
        first, second, seed=5, resamples=200, level=0.9, clusters=clusters, draw_seeds=draw_seeds
    )
    members = [np.flatnonzero(clusters == name) for name in sorted(set(clusters))]
    drawn_clusters = np.random.default_rng(5).integers(5, size=(200, 5))
    drawn_seeds = np.random.default_rng([5, 1]).integers(3, size=(200, 3)) if draw_seeds else [range(3)] * 200
    means = [
        np.mean([first[s, q] - second[s, q] for s in seeds for group in groups for q in members[group]])
        for groups, seeds in zip(drawn_clusters, drawn_seeds, strict=True)
    ]
    mean = (first - second).mean()
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))
    assert found.p_value == (1 + sum(abs(m - mean) >= abs(mean) - 1e-12 for m in means)) / 201


def test_clusters_of_one_query_are_queries() -> None:
    first, second = draw_hits((2, 30), share=0.6, seed=1), draw_hits((2, 30), share=0.5, seed=2)
    alone = paired_bootstrap(first, second, seed=0, clusters=np.arange(30))
    assert alone == paired_bootstrap(first, second, seed=0)


def test_what_differs_by_class_is_less_certain_over_classes_and_what_differs_by_seed_over_seeds() -> None:
    def width(first: np.ndarray, **options: object) -> float:
        found = paired_bootstrap(first, np.zeros_like(first), seed=0, **options)
        return found.high - found.low

    classes = np.repeat(np.arange(10), 50)
    by_class = np.repeat(draw_hits((10,), share=0.5, seed=0), 50)
    assert width(by_class, clusters=classes) > 5 * width(by_class)
    by_seed = np.repeat([[0.2], [0.5], [0.8]], 500, axis=1)
    assert width(by_seed) == pytest.approx(0)
    assert width(by_seed, draw_seeds=True) > 0.3


def test_blocks_of_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = draw_hits((30,), share=0.6, seed=1), draw_hits((30,), share=0.5, seed=2)
    whole = {"seed": 0, "resamples": 100, "clusters": np.arange(30) // 3, "draw_seeds": True}
    at_once = [paired_bootstrap(first, second, seed=0, resamples=100), paired_bootstrap(first, second, **whole)]
    for numbers in (1, 30 * 7):
        monkeypatch.setattr(index.evaluation.comparison, "_BLOCK_DRAWS", numbers)
        assert paired_bootstrap(first, second, seed=0, resamples=100) == at_once[0]
        assert paired_bootstrap(first, second, **whole) == at_once[1]


def test_equal_methods_do_not_differ_and_a_constant_gain_is_certain() -> None:
    hits = draw_hits((2, 50), share=0.5, seed=0)
    same = paired_bootstrap(hits, hits, seed=0)
    assert (same.mean, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    gain = paired_bootstrap(np.ones(50), np.zeros(50), seed=0, resamples=99)
    assert (gain.mean, gain.low, gain.high, gain.p_value) == (1, 1, 1, 0.01)  # never 0


def test_swapping_the_methods_turns_the_sign_alone() -> None:
    first, second = draw_hits((200,), share=0.6, seed=3), draw_hits((200,), share=0.5, seed=4)
    there, back = (paired_bootstrap(*pair, seed=0) for pair in ((first, second), (second, first)))
    assert (back.mean, back.p_value) == (-there.mean, there.p_value)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))


def test_pairing_tells_apart_what_single_intervals_do_not() -> None:
    second = draw_hits((1000,), share=0.5, seed=0)
    first = second.copy()
    first[np.flatnonzero(second == 0)[:20]] = 1  # better on 20 queries, worse on none
    found = paired_bootstrap(first, second, seed=0)
    assert found.mean == pytest.approx(0.02)
    assert found.low > 0
    assert found.p_value < 0.01
    assert bootstrap_interval(first, seed=0)[0] < bootstrap_interval(second, seed=0)[1]


def test_by_chance_few_differences_look_real() -> None:
    values = [
        paired_bootstrap(
            draw_hits((120,), share=0.5, seed=2 * i), draw_hits((120,), share=0.5, seed=2 * i + 1), seed=i
        ).p_value
        for i in range(200)
    ]
    assert np.mean(np.array(values) < 0.05) < 0.12
    assert 0.35 < np.median(values) < 0.65


def test_scores_of_other_queries_are_refused() -> None:
    for first, second in (((3,), (4,)), ((2, 3), (3,)), ((0,), (0,)), ((1, 1, 2), (1, 1, 2)), ((), ())):
        with pytest.raises(InputError, match="paired scores must be two arrays"):
            paired_bootstrap(np.zeros(first), np.zeros(second), seed=0)
    with pytest.raises(InputError, match="clusters must be one a query"):
        paired_bootstrap(np.zeros((2, 3)), np.zeros((2, 3)), seed=0, clusters=np.zeros(2, dtype=np.int64))
    with pytest.raises(InputError, match="resamples must be at least 1"):
        paired_bootstrap(np.zeros(3), np.zeros(3), seed=0, resamples=0)


def test_the_examples_in_the_docstrings_are_right() -> None:
    result = doctest.testmod(index.evaluation.comparison)
    assert result.attempted > 0
    assert result.failed == 0
