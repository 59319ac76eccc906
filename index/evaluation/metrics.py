"""Retrieval metrics over ranked relevance: Recall@K, R-precision and MAP@R.

Definitions: Recall@K as in the metric-learning literature (a query scores 1 if any of its first K neighbours is
relevant); R-precision and MAP@R as in Musgrave, Belongie and Lim, "A Metric Learning Reality Check" (2020), with R
the number of relevant items of the query.

Items are ranked by (descending product, id). A blocked float32 product finds the candidates for the first places. The
exact product is taken only of those that stand closer to a neighbour than the error of float32.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import UNLABELLED, Doubles, Floats, Ids, Labels
from index.errors import InputError
from index.evaluation.comparison import Scores, bootstrap_interval
from index.progress import Progress, no_progress
from index.threads import map_ahead, multiplying_workers
from index.vectors.exact import bound_error, find_candidates, multiply_pairs

_PRODUCTS_AT_ONCE = 1 << 22
_LARGEST_NORM = 2.0**60
_ROWS_AT_ONCE = 4096
_KEYS_OF_A_LINE = np.int64(1) << 32

PairRelevance = Callable[[Ids, Ids], Doubles]
"""(P,) query rows and (P,) gallery rows to (P,) relevance in 0..1, in place of equal labels."""


@dataclass(frozen=True, slots=True)
class RelevantRanks:
    """Ranks of relevant items, from 1, ascending within a query, and exact up to the query's depth.

    `ranks[starts[q] : starts[q + 1]]` belong to query q, as does their `relevance`, above 0 and at most 1.
    """

    starts: Ids
    ranks: Ids
    relevance: Doubles

    @property
    def queries(self) -> Ids:
        """The query of each rank."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def found(self) -> Doubles:
        """Sum of the relevance of a query's items down to each rank."""
        sums = np.append(0.0, self.relevance.cumsum())
        found: Doubles = sums[1:] - np.repeat(sums[self.starts[:-1]], np.diff(self.starts))
        return found


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labelled images, queries or the gallery that they search: (N, D) float32 unit `vectors` and (N,) int64 `labels`.

    A query does not find the image of its own of (N,) unique `ids`, and nothing of its own of (N,) `groups`; of equal
    products the smaller id stands first. Without ids a gallery has row numbers, and queries are not members of it.
    """

    vectors: Floats
    labels: Labels
    ids: Ids | None = None
    groups: Ids | None = None


class _Ranking:
    """Queries and a gallery in the order of ids, both scaled by powers of two where products would be too large."""

    def __init__(
        self, queries: Labelled, gallery: Labelled, *, own: Ids, depths: Ids, relevance: PairRelevance | None
    ) -> None:
        """Prepare a ranking.

        `own` (Q,) is the row of the query in the gallery, which it does not find, -1 where it is not a member; `depths`
        (Q,) the rank down to which all are wanted, 0 to leave the query out; `relevance` that of pairs, None: 1 for one
        label.
        """
        norms, others = _measure_norms(queries.vectors), _measure_norms(gallery.vectors)
        rows = np.arange(len(gallery.labels))
        self._by_id = rows if gallery.ids is None else np.argsort(gallery.ids)
        if not np.array_equal(self._by_id, rows):
            groups = None if gallery.groups is None else gallery.groups[self._by_id]
            gallery = Labelled(gallery.vectors[self._by_id], gallery.labels[self._by_id], groups=groups)
        positions = np.empty(len(rows) + 1, dtype=np.int64)
        positions[self._by_id], positions[-1] = rows, -1
        self._queries, self._gallery, self._own, self._depths = queries, gallery, positions[own], depths
        self._relevance = relevance
        self._scale, other_scale = _find_scale(norms), _find_scale(others)
        largest = float(others.max()) * other_scale
        self._errors = bound_error(norms * self._scale, largest=largest, dim=gallery.vectors.shape[1])
        self._product_scale = self._scale * other_scale
        self._columns = gallery.vectors if other_scale == 1 else gallery.vectors * np.float32(other_scale)

    def rank_all(self) -> Iterator[tuple[Ids, RelevantRanks]]:
        """The relevant items' ranks of some queries at a time: their rows, and the ranks."""
        size = max(4, _PRODUCTS_AT_ONCE // len(self._by_id))
        wanted = np.flatnonzero(self._depths)
        wanted = wanted[np.argsort(self._depths[wanted], kind="stable")]  # equal depths together
        blocks = (wanted[start : start + size] for start in range(0, len(wanted), size))
        with (
            multiplying_workers() as workers,
            closing(map_ahead(self.rank, blocks, workers=workers, ahead=2 * workers)) as ranked,
        ):
            yield from ranked

    def rank(self, rows: Ids) -> tuple[Ids, RelevantRanks]:
        queries, gallery, errors = self._queries, self._gallery, self._errors[rows]
        products = (queries.vectors[rows] * np.float32(self._scale)) @ self._columns.T
        members = np.flatnonzero(self._own[rows] >= 0)
        products[members, self._own[rows[members]]] = -np.inf
        if queries.groups is not None and gallery.groups is not None:
            products[queries.groups[rows, None] == gallery.groups] = -np.inf
        count = products.shape[1]
        hits = find_candidates(products, k=min(int(self._depths[rows].max()), count), errors=errors)
        lines, columns = np.divmod(hits, count)
        scores = products.ravel()[hits]
        order = np.argsort(_make_keys(lines, scores), kind="stable")
        close = np.diff(scores[order]) >= -2 * errors[lines[order[1:]]]
        close &= lines[order[1:]] == lines[order[:-1]]
        uncertain = order[np.append(close, False) | np.insert(close, 0, False)]
        if len(uncertain):
            scores[uncertain] = multiply_pairs(
                queries.vectors, gallery.vectors, rows[lines[uncertain]], columns[uncertain], scale=self._product_scale
            )
            order = np.argsort(_make_keys(lines, scores), kind="stable")  # columns rise, and with them ids
        ranks = np.arange(1, len(hits) + 1) - np.searchsorted(lines, lines)
        columns = columns[order]
        if self._relevance is None:
            kept = np.flatnonzero(queries.labels[rows[lines]] == gallery.labels[columns])
            relevance = np.ones(len(kept))
        else:
            kept = np.flatnonzero(ranks <= self._depths[rows[lines]])
            relevance = self._relevance(rows[lines[kept]], self._by_id[columns[kept]])
            kept, relevance = kept[relevance > 0], relevance[relevance > 0]
        starts = np.searchsorted(lines[kept], np.arange(len(rows) + 1))
        return rows, RelevantRanks(starts, ranks[kept], relevance)


def _make_keys(lines: Ids, scores: Floats) -> Ids:
    """int64 that order pairs of line and score by line, then by descending score; equal for equal pairs."""
    bits = (scores + np.float32(0)).view(np.int32)  # 0 has other bits than -0
    return lines * _KEYS_OF_A_LINE - np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def _measure_norms(rows: Floats) -> Doubles:
    """(N,) norms of (N, D) rows."""
    norms = np.empty(len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[start : start + _ROWS_AT_ONCE].astype(np.float64)
        norms[start : start + len(block)] = np.sqrt(np.einsum("ij,ij->i", block, block))
    unusable = np.flatnonzero(~np.isfinite(norms))
    if len(unusable):
        raise InputError(
            f"{len(unusable)} of {len(norms)} vectors, the first in row {unusable[0]}, hold NaN or infinite numbers; "
            "they have no place in a ranking: leave them out, or embed their images again"
        )
    return norms


def _find_scale(norms: Doubles) -> float:
    """1 where no square of the (N,) norms is too large for float32, else the power of two that brings all below 1."""
    largest = float(norms.max(initial=0.0))
    return 1.0 if largest < _LARGEST_NORM else float(2.0 ** -int(np.frexp(largest)[1]))


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

    `hits[k]` is (Q,) float64 in {0, 1}, or in 0..1 by expected relevance; `lone_queries` counts labelled queries
    without a relevant item (outside their group).
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
        return {k: float(hits.mean()) for k, hits in self.hits.items()}

    @property
    def recall_interval(self) -> tuple[float, float]:
        return bootstrap_interval(self.hits[1], seed=_SEED)

    @property
    def map_interval(self) -> tuple[float, float]:
        return bootstrap_interval(self.average_precision, seed=_SEED)

    def per_class_recall(self, k: int) -> dict[int, float]:
        """Recall@K of each label's own queries, labels in ascending order."""
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
    """Relevance of uncertain labels: the probability that the `pairs` of query and gallery item are of one class.

    `counts` (Q,) is the expected number of relevant gallery items, without the query and its group.
    """

    pairs: PairRelevance
    counts: Scores


def score_retrieval(
    queries: Labelled,
    gallery: Labelled,
    *,
    ks: Sequence[int] = DEFAULT_KS,
    expected: ExpectedRelevance | None = None,
    progress: Progress = no_progress,
) -> RetrievalScores:
    """Score the ranking of every labelled query by (descending product, id), exactly; memory is bounded.

    Products count as equal where they are after summation in float64 and one rounding to float32. With `expected`
    relevance, R of MAP@R is rounded and at least 1; by labels are then only the queries chosen.
    """
    if not ks or min(ks) < 1:
        raise InputError(f"k must be whole numbers of at least 1, got {list(ks)}")
    own = find_members(queries, gallery)
    r = _count_findable(queries, gallery, own)
    findable = np.flatnonzero(r)
    lone = int(((queries.labels != UNLABELLED) & (r == 0)).sum())
    if not len(findable):
        where = "" if queries.groups is None else " outside its group"
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
    depths = np.where(r > 0, np.maximum(r, max(ks)), 0)
    relevance = None if expected is None else expected.pairs
    for rows, ranks in _Ranking(queries, gallery, own=own, depths=depths, relevance=relevance).rank_all():
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
        labels=queries.labels[findable],
        lone_queries=lone,
    )


def find_members(queries: Labelled, gallery: Labelled) -> Ids:
    """(Q,) int64 row of each query in the gallery, -1 where it is not a member."""
    if queries.ids is None or not len(gallery.labels):
        return np.full(len(queries.labels), -1, dtype=np.int64)
    ids = np.arange(len(gallery.labels)) if gallery.ids is None else gallery.ids
    by_id = np.argsort(ids)
    position = by_id[np.searchsorted(ids, queries.ids, sorter=by_id).clip(max=len(by_id) - 1)]
    return np.where(ids[position] == queries.ids, position, -1)


def _count_findable(queries: Labelled, gallery: Labelled, own: Ids) -> Labels:
    """(Q,) gallery items of the query's label outside its group."""
    counts = count_relevant(queries.labels, gallery.labels, own=own)
    if queries.groups is not None and gallery.groups is not None:
        # Less those of the query's group: equal pairs of label and group.
        label_of = np.unique(np.concatenate([queries.labels, gallery.labels]), return_inverse=True)[1]
        group_of = np.unique(np.concatenate([queries.groups, gallery.groups]), return_inverse=True)[1]
        of_queries, of_gallery = np.split(label_of * len(group_of) + group_of, [len(queries.labels)])
        counts -= count_relevant(np.where(queries.labels == UNLABELLED, UNLABELLED, of_queries), of_gallery, own=own)
    return counts


def count_relevant(query_labels: Labels, gallery_labels: Labels, *, own: Ids) -> Labels:
    """(Q,) gallery items of the query's label, without the query itself, at the position `own` (Q,), -1 for none."""
    labels, counts = np.unique(gallery_labels[gallery_labels != UNLABELLED], return_counts=True)
    if not len(labels):
        return np.zeros(len(query_labels), dtype=np.int64)
    position = np.searchsorted(labels, query_labels).clip(max=len(labels) - 1)
    found = np.where(labels[position] == query_labels, counts[position], 0).astype(np.int64)
    found -= (own >= 0) & (found > 0) & (gallery_labels[own] == query_labels)
    return found
