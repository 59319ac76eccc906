import numpy as np
import pytest

import index.evaluation.comparison
from index.errors import InputError
from index.evaluation.comparison import paired_bootstrap


def draw_hits(shape: tuple[int, ...], *, share: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) < share).astype(np.float64)


@pytest.mark.parametrize(("clustered", "draw_seeds"), [(False, False), (True, False), (True, True)])
def test_the_difference_agrees_with_a_loop_over_the_same_draws(clustered: bool, draw_seeds: bool) -> None:
    first, second = draw_hits((3, 40), share=0.6, seed=1), draw_hits((3, 40), share=0.5, seed=2)
    clusters = np.random.default_rng(3).choice([7, 2, 9, 4, 30], size=40) if clustered else np.arange(40)
    given_clusters = clusters if clustered else None
    options = {"level": 0.9, "clusters": given_clusters, "draw_seeds": draw_seeds}
    found = paired_bootstrap(first, second, seed=5, resamples=200, **options)
    members = [np.flatnonzero(clusters == name) for name in sorted(set(clusters))]
    count = len(members)
    drawn_clusters = np.random.default_rng(5).integers(count, size=(200, count))
    drawn_seeds = np.random.default_rng([5, 1]).integers(3, size=(200, 3)) if draw_seeds else [range(3)] * 200
    means = [
        np.mean([first[s, q] - second[s, q] for s in seeds for group in groups for q in members[group]])
        for groups, seeds in zip(drawn_clusters, drawn_seeds, strict=True)
    ]
    mean = (first - second).mean()
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))
    assert found.p_value == (1 + sum(abs(m - mean) >= abs(mean) - 1e-12 for m in means)) / 201


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


def test_scores_of_other_queries_are_refused() -> None:
    for first, second in (((3,), (4,)), ((2, 3), (3,)), ((0,), (0,)), ((1, 1, 2), (1, 1, 2)), ((), ())):
        with pytest.raises(InputError, match="paired scores must be two arrays"):
            paired_bootstrap(np.zeros(first), np.zeros(second), seed=0)
    with pytest.raises(InputError, match="clusters must be one a query"):
        paired_bootstrap(np.zeros((2, 3)), np.zeros((2, 3)), seed=0, clusters=np.zeros(2, dtype=np.int64))
    with pytest.raises(InputError, match="resamples must be at least 1"):
        paired_bootstrap(np.zeros(3), np.zeros(3), seed=0, resamples=0)
