"""Two methods on the same queries, and one method over several seeds: what the difference and the spread are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.errors import InputError
from index.evaluation.metrics import Scores

_BLOCK_DRAWS = 1 << 22  # of queries, held at once


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation (0 for a single value) of `count` values, one a seed."""

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of first minus second over the queries, its percentile interval, and a two-sided bootstrap p-value.

    `p_value` is for "the mean difference is 0"; it is never below 1 / (1 + resamples).
    """

    mean: float
    low: float
    high: float
    p_value: float


def spread(values: Sequence[float] | Scores) -> Spread:
    """Mean and sample deviation of one value a seed.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, deviation=1.4142135623730951, count=2)

    Raises:
        InputError: there is no value.
    """
    if not len(values):
        raise InputError("a spread needs at least one value, got none")
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Spread(mean=float(np.mean(values)), deviation=deviation, count=len(values))


def paired_bootstrap(
    first: Scores, second: Scores, *, seed: int, resamples: int = 1000, level: float = 0.95
) -> PairedDifference:
    """Compare two methods' scores on the same queries by resampling the queries.

    With several seeds, a resampled query is taken with its scores under all of them, and the seeds are averaged. So
    the interval is over queries for these very seeds; how much seeds differ is what `spread` says.

    Args:
        first, second: (Q,), or (S, Q) for S seeds: one score a query, the queries in the same order.
        resamples: draws of Q queries with replacement.
        level: share of the draws' differences between the two bounds.

    Raises:
        InputError: the scores are not of the same queries and seeds, or there are none.
    """
    if first.shape != second.shape or first.ndim not in (1, 2) or not first.size:
        raise InputError(
            f"paired scores must be two arrays (queries,) or (seeds, queries) of one shape, not empty; "
            f"got {first.shape} and {second.shape}"
        )
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples}")
    # Sums until the end: those of hits are whole numbers, so that a draw as far off as the mean counts exactly.
    differences = np.atleast_2d(first - second).sum(axis=0)
    total, sums = float(differences.sum()), _resampled_sums(differences, seed=seed, resamples=resamples)
    low, high = np.quantile(sums, [(1 - level) / 2, (1 + level) / 2])
    as_far = int((np.abs(sums - total) >= abs(total)).sum())
    return PairedDifference(
        mean=total / first.size,
        low=float(low) / first.size,
        high=float(high) / first.size,
        p_value=(1 + as_far) / (1 + resamples),
    )


def _resampled_sums(values: Scores, *, seed: int, resamples: int) -> Scores:
    """(resamples,) sums of Q of the (Q,) values, drawn with replacement."""
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK_DRAWS // len(values))
    blocks = [
        values[generator.integers(len(values), size=(min(rows, resamples - start), len(values)))].sum(axis=1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(blocks)
