"""Retrieval metrics over ranked relevance: Recall@K, R-precision and MAP@R.

Definitions: Recall@K as in the metric-learning literature (a query scores 1 if any of its first K neighbours is
relevant); R-precision and MAP@R as in Musgrave, Belongie and Lim, "A Metric Learning Reality Check" (2020), with R
the number of relevant items of the query.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import UNLABELLED, Floats, Ids, Labels
from index.errors import InputError
from index.evaluation.comparison import Scores, bootstrap_interval
from index.evaluation.relevant_ranks import Labelled, PairRelevance, RelevantRanks, rank_relevant
from index.progress import Progress, no_progress

Relevance = npt.NDArray[np.bool_]
DEFAULT_KS = (1, 2, 4, 8, 16)
_SEED = 0  # of intervals
K_SETS: Mapping[str, tuple[int, ...]] = {  # what the literature reports on each of its datasets
    "webvision": DEFAULT_KS,
    "tiny-imagenet": DEFAULT_KS,
    "cub-200-2011": (1, 2, 4, 8),
    "cars-196": (1, 2, 4, 8),
    "sop": (1, 10, 100, 1000),
    "in-shop": (1, 10, 20, 40),
}


@dataclass(frozen=True, slots=True)
class RetrievalScores:
    """Scores of Q queries with a relevant item, and their means.

    `hits[k]` is (Q,) float64 in {0, 1}, or in 0..1 by expected relevance; `average_precision` and `r_precision` are
    (Q,) float64; `labels` (Q,) int64 are those of the queries. `lone_queries` counts labelled queries without a
    relevant item (outside their group).
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

    @property
    def recall_interval(self) -> tuple[float, float]:
        """95 % interval of Recall@1 over queries."""
        return bootstrap_interval(self.hits[1], seed=_SEED)

    @property
    def map_interval(self) -> tuple[float, float]:
        """95 % interval of MAP@R over queries."""
        return bootstrap_interval(self.average_precision, seed=_SEED)

    def per_class_recall(self, k: int) -> dict[int, float]:
        """Recall@K of each label's own queries, labels in rising order."""
        labels, position, queries = np.unique(self.labels, return_inverse=True, return_counts=True)
        recall = np.bincount(position, weights=self.hits[k]) / queries
        return dict(zip(labels.tolist(), recall.tolist(), strict=True))

    def mean_class_recall(self, k: int) -> float:
        """Recall@K averaged over the labels, each with the same weight."""
        return float(np.mean(list(self.per_class_recall(k).values())))

    def to_json(self) -> dict[str, object]:
        """The means with intervals, as in reports."""
        return {
            "queries": self.queries,
            "lone_queries": self.lone_queries,
            "recall": {str(k): value for k, value in self.recall.items()},
            "map_at_r": float(self.average_precision.mean()),
            "r_precision": float(self.r_precision.mean()),
            "recall_at_1_interval": list(self.recall_interval),
            "map_at_r_interval": list(self.map_interval),
        }


def recall_at_k(relevant: RelevantRanks, k: int) -> Scores:
    """(Q,) relevance of the first k items, at most 1: 1.0 where a relevant item stands among them.

    >>> recall_at_k(RelevantRanks(np.array([0, 1, 2]), ranks=np.array([2, 3]), relevance=np.ones(2)), 2).tolist()
    [1.0, 0.0]
    """
    return np.minimum(_sum_by_query(relevant, relevant.relevance * (relevant.ranks <= k)), 1.0)


def precision_at_r(relevant: RelevantRanks, r: Labels) -> Scores:
    """(Q,) share of relevant items among the first r[q], at least 1.

    >>> ranks = RelevantRanks(np.array([0, 2]), ranks=np.array([1, 3]), relevance=np.ones(2))
    >>> precision_at_r(ranks, np.array([2])).tolist()
    [0.5]
    """
    return _sum_by_query(relevant, relevant.relevance * (relevant.ranks <= r[relevant.queries])) / r


def average_precision_at_r(relevant: RelevantRanks, r: Labels) -> Scores:
    """(Q,) mean over the first r[q] ranks of the precision there, times the relevance of the item (MAP@R).

    >>> ranks = RelevantRanks(np.array([0, 2]), ranks=np.array([1, 3]), relevance=np.ones(2))
    >>> average_precision_at_r(ranks, np.array([3])).round(4).tolist()
    [0.5556]
    """
    counted = relevant.ranks <= r[relevant.queries]
    return _sum_by_query(relevant, counted * relevant.relevance * relevant.found / relevant.ranks) / r


def _sum_by_query(relevant: RelevantRanks, values: npt.NDArray[np.generic]) -> Scores:
    queries = len(relevant.starts) - 1
    return np.bincount(relevant.queries, weights=values, minlength=queries).astype(np.float64)


@dataclass(frozen=True, slots=True)
class ExpectedRelevance:
    """Relevance of uncertain labels, in place of equal labels.

    Attributes:
        pairs: probability that query and gallery item are of one class.
        counts: (Q,) float64 expected number of relevant gallery items, without the query and its group.
    """

    pairs: PairRelevance
    counts: Scores


def score_retrieval(
    queries: Floats,
    query_labels: Labels,
    *,
    gallery: Floats,
    gallery_labels: Labels,
    gallery_ids: Ids,
    query_ids: Ids | None = None,
    query_groups: Ids | None = None,
    gallery_groups: Ids | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    expected: ExpectedRelevance | None = None,
    progress: Progress = no_progress,
) -> RetrievalScores:
    """Score the ranking of every labelled query by (falling product, id), exactly; memory is bounded.

    Products count as equal where they are after summation in float64 and one rounding to float32.

    Args:
        queries, gallery: (Q, D) and (N, D) float32 unit rows.
        query_labels, gallery_labels: (Q,) and (N,) int64; `UNLABELLED` queries are left out, `UNLABELLED` gallery
            items are never relevant.
        gallery_ids, query_ids: int64; a query is removed from its own ranking by id. None: queries are no members.
        query_groups, gallery_groups: (Q,) and (N,) int64: the images of a query's group are removed from its ranking
            as well. Both or none.
        ks: the K of Recall@K.
        expected: relevance, and R of MAP@R, rounded and at least 1. By labels are then only the queries chosen, those
            with an item of their label.

    Raises:
        InputError: a K below 1, no query has a relevant item, or a vector holds NaN or infinite numbers.
    """
    if not ks or min(ks) < 1:
        raise InputError(f"k must be whole numbers of at least 1, got {list(ks)}")
    own = _find_members(query_ids, gallery_ids, queries=len(queries))
    r = count_relevant(query_labels, gallery_labels, own=own)
    if query_groups is not None and gallery_groups is not None:
        # Less those of the query's group: equal pairs of label and group.
        label_of = np.unique(np.concatenate([query_labels, gallery_labels]), return_inverse=True)[1]
        group_of = np.unique(np.concatenate([query_groups, gallery_groups]), return_inverse=True)[1]
        of_queries, of_gallery = np.split(label_of * len(group_of) + group_of, [len(query_groups)])
        r -= count_relevant(np.where(query_labels == UNLABELLED, UNLABELLED, of_queries), of_gallery, own=own)
    lone = int(((query_labels != UNLABELLED) & (r == 0)).sum())
    findable = np.flatnonzero(r)
    if not len(findable):
        where = "" if query_groups is None else " outside its group"
        raise InputError(
            f"no query has another image of its label to find{where}: all {lone} labelled queries stand alone"
            if lone
            else "no query has a label; Recall@K needs class folders or a label file"
        )
    if expected is not None:
        r = np.where(r > 0, np.maximum(expected.counts.round().astype(np.int64), 1), 0)
    counts, done = np.maximum(r, 1), 0
    hits = {k: np.zeros(len(r)) for k in ks}
    average_precision, r_precision = np.zeros(len(r)), np.zeros(len(r))
    ranked = rank_relevant(
        Labelled(queries, query_labels, query_groups),
        Labelled(gallery, gallery_labels, gallery_groups),
        own=own,
        ids=gallery_ids,
        depths=np.where(r > 0, np.maximum(r, max(ks)), 0),
        relevance=None if expected is None else expected.pairs,
    )
    for rows, ranks in ranked:
        for k in ks:
            hits[k][rows] = recall_at_k(ranks, k)
        average_precision[rows] = average_precision_at_r(ranks, counts[rows])
        r_precision[rows] = precision_at_r(ranks, counts[rows])
        done += len(rows)
        progress(done, len(findable))
    return RetrievalScores(
        hits={k: values[findable] for k, values in hits.items()},
        average_precision=average_precision[findable],
        r_precision=r_precision[findable],
        labels=query_labels[findable],
        lone_queries=lone,
    )


def _find_members(query_ids: Ids | None, gallery_ids: Ids, *, queries: int) -> Ids:
    """(Q,) place of each query in the gallery, -1 where it has none."""
    if query_ids is None or not len(gallery_ids):
        return np.full(queries, -1, dtype=np.int64)
    by_id = np.argsort(gallery_ids)
    place = by_id[np.searchsorted(gallery_ids, query_ids, sorter=by_id).clip(max=len(by_id) - 1)]
    return np.where(gallery_ids[place] == query_ids, place, -1)


def count_relevant(query_labels: Labels, gallery_labels: Labels, *, own: Ids) -> Labels:
    """(Q,) gallery items of the query's label, the query itself not counted.

    Args:
        query_labels, gallery_labels: (Q,) and (N,) int64, `UNLABELLED` where there is none.
        own: (Q,) int64 place of each query in the gallery, -1 where it has none.
    """
    labels, counts = np.unique(gallery_labels[gallery_labels != UNLABELLED], return_counts=True)
    if not len(labels):
        return np.zeros(len(query_labels), dtype=np.int64)
    position = np.searchsorted(labels, query_labels).clip(max=len(labels) - 1)
    found = np.where(labels[position] == query_labels, counts[position], 0).astype(np.int64)
    found -= (own >= 0) & (found > 0) & (gallery_labels[own] == query_labels)
    return found
