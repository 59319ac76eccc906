"""Recall@1 by how many images a class has: an average over queries hides what happens to rare classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.arrays import Labels
from index.evaluation.metrics import Scores

BANDS = 3


@dataclass(frozen=True, slots=True)
class SizeBand:
    """Classes of similar size.

    Attributes:
        least, most: images that such a class trains on.
        classes, queries: how many.
        recall: Recall@1 (fractions) by method, the mean over the classes of each.
    """

    least: int
    most: int
    classes: int
    queries: int
    recall: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "images": [self.least, self.most], "classes": self.classes, "queries": self.queries,
            "recall_at_1": dict(self.recall),
        }  # fmt: skip


def band_by_size(sizes: Labels, labels: Labels, hits: Mapping[str, Scores]) -> tuple[SizeBand, ...]:
    """Thirds of the classes, the largest first; classes of one size stay together, so that there may be fewer bands.

    Args:
        sizes: (Q,) int64, how many images the class of each query trains on.
        labels: (Q,) int64 classes of the queries.
        hits: (Q,) float64 in {0, 1} by method.
    """
    classes, first = np.unique(labels, return_index=True)
    of_class = sizes[first]
    edges = np.unique(np.quantile(of_class, np.arange(1, BANDS) / BANDS, method="lower"))
    band = np.searchsorted(edges, of_class, side="left")  # 0 is the rarest
    bands = []
    for number in np.unique(band)[::-1]:
        members = classes[band == number]
        asked = np.isin(labels, members)
        within = of_class[band == number]
        recall = {name: _mean_over_classes(found[asked], labels[asked]) for name, found in hits.items()}
        bands.append(SizeBand(int(within.min()), int(within.max()), len(members), int(asked.sum()), recall))
    return tuple(bands)


def name_sizes(least: int, most: int) -> str:
    """Sizes in words.

    >>> name_sizes(3, 3), name_sizes(3, 9)
    ('3', '3-9')
    """
    return f"{least}-{most}" if most > least else str(least)


def _mean_over_classes(hits: Scores, labels: Labels) -> float:
    _, place, queries = np.unique(labels, return_inverse=True, return_counts=True)
    return float((np.bincount(place, weights=hits) / queries).mean())
