"""Calibration of scores: the precision at each score, by the labels of the gallery."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, UNLABELLED, Doubles, Floats, Ids, Labels, Mask, Vectors
from index.evaluation.evaluate import read_group_sources
from index.evaluation.groups import find_groups
from index.gallery.gallery import Gallery
from index.labels.kinds import count_groups
from index.progress import Progress, no_progress
from index.threads import multiplying_workers
from index.vectors.exact import search
from retrieval_app.insights.answer import Answer

DEPTH = 24  # hits that a search shows at first
_SAMPLE, _FEWEST = 2000, 30  # queries
_NAMES = (("very likely", 0.8), ("likely", 0.5), ("uncertain", 0.2))
_LOWEST_NAME = "unlikely"
_NORMAL = 1.96  # standard deviations on both sides of 95 %


class PrecisionAtScore(Answer):
    """Precision at a score: the share of neighbours with the same label, its 95 % interval, and that in words."""

    value: float
    low: float
    high: float
    name: str


@dataclass(frozen=True)
class Calibration:
    """Precision for every score, which never falls with a rising score; of so many `queries`."""

    points: tuple[tuple[float, float, float, float], ...]  # (score, share, low, high); a share holds from its score on
    queries: int

    @cached_property
    def _scores(self) -> Doubles:
        return np.array([point[0] for point in self.points])

    @cached_property
    def _precisions(self) -> list[PrecisionAtScore]:
        return [
            PrecisionAtScore(
                value=share, low=low, high=high, name=next((n for n, least in _NAMES if share >= least), _LOWEST_NAME)
            )
            for _, share, low, high in self.points
        ]

    def precision_at(self, scores: npt.NDArray[np.floating[Any]]) -> list[PrecisionAtScore]:
        """Precision at each of (n,) scores; below the lowest score seen, that of the lowest."""
        positions = np.searchsorted(self._scores, scores, side="right") - 1
        return [self._precisions[max(position, 0)] for position in positions.tolist()]


def calibrate(gallery: Gallery, progress: Progress = no_progress, *, seed: int = 0) -> Calibration | None:
    """Calibration of a gallery, by the grouped evaluation; None with fewer than 30 queries or a single label."""
    vectors, labels, _, _ = gallery.labelled_vectors()
    groups = find_groups(vectors, labels, read_group_sources(gallery, near_copies=False))
    return learn_shares(vectors, labels, seed=seed, groups=None if groups is None else groups.shots, progress=progress)


def learn_shares(
    vectors: Vectors, labels: Labels, *, seed: int, groups: Ids | None = None, progress: Progress = no_progress
) -> Calibration | None:
    """Calibration from the `DEPTH` nearest labelled rows of at most 2,000 queries, whose label another group has too.

    Isotonic regression of "has the same label" on the score, with Wilson's interval; its number of trials is that of
    the queries, as the hits of one query are not independent. Rows of one group do not find each other.
    """
    rows = np.flatnonzero(labels != UNLABELLED)
    vectors, labels, groups = vectors[rows], labels[rows], None if groups is None else groups[rows]
    counts = np.bincount(labels, minlength=1)
    apart = np.arange(len(labels)) if groups is None else groups
    usable = np.flatnonzero(count_groups(labels, apart)[labels] > 1)
    if len(usable) < _FEWEST or np.count_nonzero(counts) < 2:
        return None
    chosen = np.random.default_rng(seed).permutation(usable)[:_SAMPLE]
    with multiplying_workers():  # in the background: one thread
        found = search(
            vectors[chosen], vectors, k=min(DEPTH, len(rows) - 1), own=chosen, groups=groups, progress=progress
        )
    same = labels[found.rows] == labels[chosen][:, None]
    queries = np.broadcast_to(np.arange(len(chosen))[:, None], found.rows.shape)
    there = found.rows != NO_ID
    return Calibration(_fit(found.cosines[there], same[there], queries[there]), queries=len(chosen))


def _fit(scores: Floats, same: Mask, queries: Ids) -> tuple[tuple[float, float, float, float], ...]:
    """The points for (P,) scores of hits, whether each has its query's label, and the number of its query."""
    from scipy.optimize import isotonic_regression  # takes long to load

    values, position, counts = np.unique(scores, return_inverse=True, return_counts=True)
    shares = np.bincount(position, weights=same) / counts
    blocks = isotonic_regression(shares, weights=counts).blocks  # where each begins among the values, and the end
    block_of = np.searchsorted(blocks, position, side="right") - 1
    points = np.empty((len(blocks) - 1, 4))
    for number, start in enumerate(blocks[:-1].tolist()):
        inside = block_of == number
        share, trials = float(same[inside].mean()), len(np.unique(queries[inside]))
        points[number] = values[start], share, *_wilson(share, trials)
    # As shares never fall, bounds of lower scores hold from below, and those of higher ones from above.
    points[:, 2] = np.maximum.accumulate(points[:, 2])
    points[:, 3] = np.minimum.accumulate(points[::-1, 3])[::-1]
    return tuple((score, share, min(low, share), max(high, share)) for score, share, low, high in points.tolist())


def _wilson(share: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share in `trials` (1927)."""
    spread = _NORMAL**2 / trials
    middle = (share + spread / 2) / (1 + spread)
    half = _NORMAL / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / trials / 4)
    return max(0.0, middle - half), min(1.0, middle + half)
