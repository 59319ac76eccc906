"""Retrieval metrics over ranked relevance: Recall@K, R-precision and MAP@R, and an interval over queries.

Definitions: Recall@K as in the metric-learning literature (a query scores 1 if any of its first K neighbours is
relevant); R-precision and MAP@R as in Musgrave, Belongie and Lim, "A Metric Learning Reality Check" (2020), with R
the number of relevant items of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.errors import InputError
from index.exact import Floats, Ids, search_blocks
from index.progress import Progress

Relevance = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
DEFAULT_KS = (1, 2, 4, 8, 16)
K_SETS: Mapping[str, tuple[int, ...]] = {  # what the literature reports on each of its datasets
    "webvision": DEFAULT_KS,
    "tiny-imagenet": DEFAULT_KS,
    "cub-200-2011": (1, 2, 4, 8),
    "cars-196": (1, 2, 4, 8),
    "sop": (1, 10, 100, 1000),
    "in-shop": (1, 10, 20, 40),
}
UNLABELLED = -1


@dataclass(frozen=True, slots=True)
class RetrievalScores:
    """Per-query results, and the means that reports print.

    `hits[k]` is (Q,) float64 in {0, 1}; `average_precision` and `r_precision` are (Q,) float64, `labels` the
    queries' own (Q,) int64. Q counts the queries that have a relevant item; `lone_queries` those labelled ones that
    have none and are left out.
    """

    hits: dict[int, Scores]
    average_precision: Scores
    r_precision: Scores
    labels: Labels
    lone_queries: int

    @property
    def queries(self) -> int:
        """Queries in the denominators."""
        return len(self.average_precision)

    @property
    def recall(self) -> dict[int, float]:
        """Recall@K by K, fractions."""
        return {k: float(hits.mean()) for k, hits in self.hits.items()}

    def per_class_recall(self, k: int) -> dict[int, float]:
        """Recall@K of each label's own queries, labels in rising order."""
        labels, position, queries = np.unique(self.labels, return_inverse=True, return_counts=True)
        recall = np.bincount(position, weights=self.hits[k]) / queries
        return dict(zip(labels.tolist(), recall.tolist(), strict=True))

    def mean_class_recall(self, k: int) -> float:
        """Recall@K averaged over the labels, so that one of few queries counts like one of many."""
        return float(np.mean(list(self.per_class_recall(k).values())))

    def to_json(self) -> dict[str, object]:
        """The means, as they stand in reports."""
        return {
            "queries": self.queries,
            "lone_queries": self.lone_queries,
            "recall": {str(k): value for k, value in self.recall.items()},
            "map_at_r": float(self.average_precision.mean()),
            "r_precision": float(self.r_precision.mean()),
        }


def recall_at_k(relevant: Relevance, k: int) -> Scores:
    """(Q,) 1.0 where any of the first k of (Q, K) ranked neighbours is relevant.

    >>> recall_at_k(np.array([[False, True], [False, False]]), 2).tolist()
    [1.0, 0.0]
    """
    found: Scores = np.asarray(relevant[:, :k].any(axis=1), dtype=np.float64)
    return found


def precision_at_r(relevant: Relevance, r: Labels) -> Scores:
    """(Q,) share of relevant items among the first r[q] of each row; r[q] is at least 1 and at most K.

    >>> precision_at_r(np.array([[True, False, True]]), np.array([2])).tolist()
    [0.5]
    """
    within = np.arange(relevant.shape[1]) < r[:, None]
    precision: Scores = (relevant & within).sum(axis=1) / r
    return precision


def average_precision_at_r(relevant: Relevance, r: Labels) -> Scores:
    """(Q,) mean over the first r[q] ranks of the precision there, counted where the item is relevant (MAP@R).

    >>> average_precision_at_r(np.array([[True, False, True]]), np.array([3])).round(4).tolist()
    [0.5556]
    """
    ranks = np.arange(1, relevant.shape[1] + 1)
    counted = relevant & (ranks <= r[:, None])
    precision = relevant.cumsum(axis=1) / ranks
    average: Scores = (precision * counted).sum(axis=1) / r
    return average


def score_retrieval(
    queries: Floats,
    query_labels: Labels,
    *,
    gallery: Floats,
    gallery_labels: Labels,
    gallery_ids: Ids,
    query_ids: Ids | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    progress: Progress | None = None,
) -> RetrievalScores:
    """Search every labelled query exactly and score its ranking; memory is bounded.

    Args:
        queries, gallery: (Q, D) and (N, D) float32 unit rows.
        query_labels, gallery_labels: (Q,) and (N,) int64, `UNLABELLED` where there is none: such queries are not
            asked, such gallery items are never relevant.
        gallery_ids, query_ids: int64; a query is removed from its own ranking by id. None: queries are no members.
        ks: the K of Recall@K.
        progress: called with (done, total) queries.

    Raises:
        InputError: a K below 1, or no query has a relevant item.
    """
    if not ks or min(ks) < 1:
        raise InputError(f"k must be whole numbers of at least 1, got {list(ks)}")
    relevant_items = _count_relevant(query_labels, gallery_labels, removed=_members(query_ids, gallery_ids))
    asked = np.flatnonzero((query_labels != UNLABELLED) & (relevant_items > 0))
    lone = int(((query_labels != UNLABELLED) & (relevant_items <= 0)).sum())
    if not len(asked):
        raise InputError(_describe_no_match(query_labels, lone=lone))
    r = relevant_items[asked]
    depth = int(min(max(max(ks), r.max()), len(gallery)))
    by_id = np.argsort(gallery_ids)
    parts: list[tuple[list[Scores], Scores, Scores]] = []
    for rows, _, ids in search_blocks(
        queries if len(asked) == len(queries) else queries[asked],
        gallery,
        k=depth,
        gallery_ids=gallery_ids,
        query_ids=None if query_ids is None else query_ids[asked],
    ):
        position = by_id[np.searchsorted(gallery_ids, ids, sorter=by_id).clip(max=len(gallery_ids) - 1)]
        relevant = (gallery_labels[position] == query_labels[asked][rows][:, None]) & (ids >= 0)
        parts.append(
            (
                [recall_at_k(relevant, k) for k in ks],
                average_precision_at_r(relevant, r[rows]),
                precision_at_r(relevant, r[rows]),
            )
        )
        if progress is not None:
            progress(rows.stop, len(asked))
    return RetrievalScores(
        hits={k: np.concatenate([part[0][i] for part in parts]) for i, k in enumerate(ks)},
        average_precision=np.concatenate([part[1] for part in parts]),
        r_precision=np.concatenate([part[2] for part in parts]),
        labels=query_labels[asked],
        lone_queries=lone,
    )


def _describe_no_match(query_labels: Labels, *, lone: int) -> str:
    if not lone:
        return f"none of {len(query_labels)} queries has a label; Recall@K needs class folders or a label file"
    return f"no query has another image of its label to find: all {lone} labelled queries stand alone"


def _members(query_ids: Ids | None, gallery_ids: Ids) -> npt.NDArray[np.bool_] | None:
    return None if query_ids is None else np.isin(query_ids, gallery_ids)


def _count_relevant(
    query_labels: Labels, gallery_labels: Labels, *, removed: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.int64]:
    """(Q,) gallery items of the query's label, the query itself not counted where it is a member."""
    labels, counts = np.unique(gallery_labels[gallery_labels != UNLABELLED], return_counts=True)
    if not len(labels):
        return np.zeros(len(query_labels), dtype=np.int64)
    position = np.searchsorted(labels, query_labels).clip(max=len(labels) - 1)
    found = np.where(labels[position] == query_labels, counts[position], 0).astype(np.int64)
    return found if removed is None else found - removed


def ranking_auc(scores: Scores, positive: Relevance) -> float | None:
    """Chance that a positive has a higher score than another item (Mann-Whitney U, area under the ROC curve).

    >>> ranking_auc(np.array([0.9, 0.1, 0.5]), np.array([True, False, False]))
    1.0

    Args:
        scores: (N,) floating; ties count half.
        positive: (N,) bool.

    Returns:
        0 to 1; None where one of the two kinds is missing.
    """
    if positive.all() or not positive.any():
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]  # ties share their mean rank
    wins = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(wins / (positive.sum() * (~positive).sum()))


def bootstrap_interval(
    per_query: Scores, *, seed: int, resamples: int = 1000, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean over resampled queries.

    Args:
        per_query: (Q,) one score a query, at least one.
        seed: of the resampling.
        resamples: draws of Q queries with replacement.
        level: share of the draws' means between the two bounds.
    """
    generator = np.random.default_rng(seed)
    means = [per_query[generator.integers(len(per_query), size=len(per_query))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
