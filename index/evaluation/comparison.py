"""Bootstrap intervals over queries: of one method's mean, and of the paired difference of two methods."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import Labels
from index.errors import InputError

Scores = npt.NDArray[np.float64]
_BLOCK_DRAWS = 1 << 22  # of queries or clusters, held at once


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of first minus second over the queries, its percentile interval, and a two-sided p-value for "it is 0"."""

    mean: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    first: Scores,
    second: Scores,
    *,
    seed: int,
    resamples: int = 1000,
    level: float = 0.95,
    clusters: Labels | None = None,
    draw_seeds: bool = False,
) -> PairedDifference:
    """Compare two methods' scores on the same queries by resampling the queries, or whole clusters of them.

    With several seeds, a resampled query has its scores under all of them, averaged; the interval is then for these
    seeds, unless `draw_seeds`. Drawing S seeds underestimates the variance between seeds by the factor (S - 1) / S.

    Args:
        first, second: (Q,), or (S, Q) for S seeds: one score a query, the queries in the same order.
        clusters: (Q,) units to draw as a whole, such as classes, if the interval is to hold for other classes.
        draw_seeds: whether a draw takes S of the S seeds with replacement.
    """
    if first.shape != second.shape or first.ndim not in (1, 2) or not first.size:
        raise InputError(
            f"paired scores must be two arrays (queries,) or (seeds, queries) of one shape, not empty; "
            f"got {first.shape} and {second.shape}"
        )
    if clusters is not None and clusters.shape != first.shape[-1:]:
        raise InputError(f"clusters must be one a query, {first.shape[-1:]}, got {clusters.shape}")
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples}")
    # Sums, not means: sums of hits are integers, so ties with the observed difference are exact.
    differences = np.atleast_2d(first - second)
    sums, sizes = differences, np.ones(differences.shape[1])
    if clusters is not None:
        positions = np.unique(clusters, return_inverse=True)[1]
        sums = np.stack([np.bincount(positions, weights=row) for row in differences])
        sizes = np.bincount(positions).astype(np.float64)
    total, count = float(differences.sum()), differences.size
    drawn, counts = _resample(sums, sizes, seed=seed, resamples=resamples, draw_seeds=draw_seeds)
    low, high = np.quantile(drawn / counts, [(1 - level) / 2, (1 + level) / 2])
    as_far = int((np.abs(drawn * count - total * counts) >= abs(total) * counts).sum())
    return PairedDifference(
        mean=total / count, low=float(low), high=float(high), p_value=(1 + as_far) / (1 + resamples)
    )


def bootstrap_interval(per_query: Scores, *, seed: int) -> tuple[float, float]:
    """Percentile interval of the mean of (Q,) scores over resampled queries."""
    found = paired_bootstrap(per_query, np.zeros_like(per_query), seed=seed)
    return found.low, found.high


def _resample(sums: Scores, sizes: Scores, *, seed: int, resamples: int, draw_seeds: bool) -> tuple[Scores, Scores]:
    """(resamples,) sums over G clusters drawn with replacement, and how many scores are in each of them."""
    seeds, groups = sums.shape
    generator = np.random.default_rng(seed)
    # Seeds have a generator of their own, so that blocks of draws change nothing.
    chosen = np.random.default_rng([seed, 1]).integers(seeds, size=(resamples, seeds)) if draw_seeds else None
    table = sums if draw_seeds else sums.sum(axis=0, keepdims=True)  # (S or 1, G)
    rows = max(1, _BLOCK_DRAWS // (groups * len(table)))
    totals, counts = [], []
    for start in range(0, resamples, rows):
        drawn = generator.integers(groups, size=(min(rows, resamples - start), groups))
        by_seed = table[:, drawn].sum(axis=2).T  # (draws, S or 1)
        if chosen is not None:
            by_seed = np.take_along_axis(by_seed, chosen[start : start + rows], axis=1)
        totals.append(by_seed.sum(axis=1))
        counts.append(seeds * sizes[drawn].sum(axis=1))
    return np.concatenate(totals), np.concatenate(counts)
