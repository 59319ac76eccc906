"""Scores of candidates on the same queries, with intervals and paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import UNLABELLED, Floats, Ids, Labels
from index.errors import InputError
from index.evaluation.comparison import PairedDifference, Scores, paired_bootstrap
from index.evaluation.groups import WORTHLESS, Groups, GroupSources, find_groups
from index.evaluation.metrics import RetrievalScores, score_retrieval
from index.progress import Progress, no_progress
from retrieval_app.comparing.embedding import Embedded, Photos

_SEED = 0  # of the resampling
_FEWEST_DIFFERENT = 6  # queries or groups: fewer would all favour one side by chance in 1 of 32 cases


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over the queries, and 95 % of its resampled values."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """As reports have it."""
        return {"value": self.value, "interval": [self.low, self.high]}


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of a candidate; `grouped` is Recall@1 of the grouped evaluation, None without groups or queries."""

    scores: RetrievalScores
    recall: dict[int, Figure]
    map_at_r: Figure
    r_precision: Figure
    grouped: float | None

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """(Q,) bool: whether the first hit has the query's label."""
        return self.scores.hits[1] > 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two candidates by their places, and the second's scores less the first's on the same queries.

    `only_first` queries are right by the first alone, and so on. `is_enough` is whether enough queries differ for an
    interval.
    """

    first: int
    second: int
    recall_at_1: PairedDifference
    map_at_r: PairedDifference
    only_first: int
    only_second: int
    both_right: int
    both_wrong: int
    is_enough: bool

    @property
    def verdict(self) -> str:
        """Verdict on the second's Recall@1 beside the first's: `better`, `worse` or `not clear`."""
        found = self.recall_at_1
        if not self.is_enough or found.low <= 0 <= found.high:
            return "not clear"
        return "better" if found.low > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores of all candidates.

    Attributes:
        queries: (Q,) rows of the query images.
        labels: (N,) int64 of all images, positions in `names`.
        lone: labelled images that have no other of their label to find.
        groups: of the images; None without.
        over_groups: whether intervals resample whole groups instead of queries.
    """

    queries: Ids
    labels: Labels
    names: list[str]
    lone: int
    scored: tuple[Scored, ...]
    pairs: tuple[Pair, ...]
    groups: Groups | None
    over_groups: bool

    def pair(self, first: int, second: int) -> Pair:
        """The pair of two candidates in their order."""
        return next(pair for pair in self.pairs if (pair.first, pair.second) == (first, second))

    @property
    def is_flattered(self) -> bool:
        """Whether groups make a Recall@1 too good to predict how new photos will fare."""
        if self.groups is None:
            return False
        return any(one.grouped is None or one.recall[1].value - one.grouped > WORTHLESS for one in self.scored)


def score_candidates(
    vectors: Sequence[Floats],
    labels: Labels,
    names: list[str],
    *,
    group_sources: GroupSources,
    ks: Sequence[int],
    progress: Progress = no_progress,
) -> Scoring:
    """Score all candidates on the same images, with every labelled one as a query for the others.

    Args:
        vectors: (N, D) float32 unit rows of each candidate; D may differ.
        labels: (N,) int64.
        group_sources: of the images; the vectors of the first candidate count too.
        ks: the K of Recall@K; 1 is added where it is missing.

    Raises:
        InputError: no query has another image of its label to find.
    """
    groups = find_groups(vectors[0], labels, group_sources)
    counts = np.bincount(labels[labels != UNLABELLED], minlength=1)
    queries: Ids = np.flatnonzero((labels != UNLABELLED) & (counts[labels.clip(min=0)] > 1))
    over_groups = groups is not None and groups.is_certain
    clusters = groups.numbers[queries] if groups is not None and over_groups else None
    scored = []
    for done, rows in enumerate(vectors):
        scored.append(_score(rows, labels, groups=groups, clusters=clusters, ks=sorted({1, *ks})))
        progress(done + 1, len(vectors))
    pairs = tuple(_compare(scored, *two, clusters=clusters) for two in combinations(range(len(scored)), 2))
    lone = scored[0].scores.lone_queries
    return Scoring(queries, labels, names, lone, tuple(scored), pairs, groups, over_groups)


def _score(
    vectors: Floats, labels: Labels, *, groups: Groups | None, clusters: Ids | None, ks: Sequence[int]
) -> Scored:
    ids = np.arange(len(vectors), dtype=np.int64)
    score = partial(
        score_retrieval, vectors, labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=ids
    )
    scores = score(ks=ks)
    grouped = None
    if groups is not None:
        try:
            grouped = score(query_groups=groups.numbers, gallery_groups=groups.numbers, ks=[1]).recall[1]
        except InputError:  # every image has those of its label in its own group
            grouped = None
    return Scored(
        scores,
        {k: _figure(hits, clusters) for k, hits in scores.hits.items()},
        _figure(scores.average_precision, clusters),
        _figure(scores.r_precision, clusters),
        grouped,
    )


def _figure(values: Scores, clusters: Ids | None) -> Figure:
    found = paired_bootstrap(values, np.zeros_like(values), seed=_SEED, clusters=clusters)
    return Figure(found.mean, found.low, found.high)


def _compare(scored: Sequence[Scored], first: int, second: int, *, clusters: Ids | None) -> Pair:
    one, other = scored[first], scored[second]
    differ = one.right != other.right
    different = int(differ.sum()) if clusters is None else len(np.unique(clusters[differ]))
    return Pair(
        first,
        second,
        paired_bootstrap(other.scores.hits[1], one.scores.hits[1], seed=_SEED, clusters=clusters),
        paired_bootstrap(other.scores.average_precision, one.scores.average_precision, seed=_SEED, clusters=clusters),
        only_first=int((one.right & ~other.right).sum()),
        only_second=int((other.right & ~one.right).sum()),
        both_right=int((one.right & other.right).sum()),
        both_wrong=int((~one.right & ~other.right).sum()),
        is_enough=different >= _FEWEST_DIFFERENT,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of candidates, in the order given.

    Attributes:
        photos: the images that every candidate could use.
        files: the table and the page.
        seconds: duration of all of it.
    """

    photos: Photos
    embedded: Sequence[Embedded]
    scoring: Scoring
    files: tuple[Path, Path]
    seconds: float

    @property
    def results(self) -> list[tuple[Embedded, Scored]]:
        """Each candidate's vectors and scores."""
        return list(zip(self.embedded, self.scoring.scored, strict=True))
