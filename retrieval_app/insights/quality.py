"""Quality of a gallery: Recall@K and MAP@R on its own labels, failures, and figures of its index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from pydantic import Field

from index.arrays import NO_ID, UNLABELLED, Floats, Ids, Labels, Vectors
from index.errors import InputError
from index.evaluation.comparison import Scores, bootstrap_interval
from index.evaluation.evaluate import MOST_QUERIES, read_group_sources, sample_by_label
from index.evaluation.groups import WORTHLESS, Groups, find_groups
from index.evaluation.metrics import Labelled, score_retrieval
from index.gallery.gallery import Gallery
from index.progress import Progress, no_progress
from index.threads import multiplying_workers
from index.vectors.exact import search_labels
from index.vectors.kinds import KINDS
from retrieval_app.insights.answer import Answer, ScoredImage
from retrieval_app.reports.duplicates_report import DuplicateReport, find_duplicate_groups

KS = (1, 2, 4, 8, 16, 32)
_WORST = 60
_PAIRS = 100
_PAIR_IDS = 60
_BINS = 40
_SEED = 0
Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class NearestByLabel:
    """Nearest rows of n queries: (n,) float32 cosines, -inf without one, and (n,) int64 rows, `NO_ID` without one.

    `same` is the nearest other row of the same label, `different` and `different_row` that of another label;
    `same_grouped` and `different_grouped` are those in other groups.
    """

    same: Floats
    different: Floats
    different_row: Ids
    same_grouped: Floats
    different_grouped: Floats


def find_nearest_by_label(
    vectors: Vectors, labels: Labels, queries: Ids, *, groups: Ids, progress: Progress
) -> NearestByLabel:
    """Nearest rows of both sides for the (n,) `queries`; `vectors` (N, D) float32, `labels` and `groups` (N,) int64."""
    with multiplying_workers():  # in the background: one thread
        found = search_labels(vectors, labels, k=1, asked=queries, progress=progress)
        same, different = (nearest.cosines[:, 0] for nearest in found)
        same_grouped, different_grouped = same.copy(), different.copy()
        values, counts = np.unique(groups, return_counts=True)
        repeated = np.flatnonzero(np.isin(groups[queries], values[counts > 1]))
        grouped = search_labels(vectors, labels, k=1, asked=queries[repeated], groups=groups)
        same_grouped[repeated], different_grouped[repeated] = (nearest.cosines[:, 0] for nearest in grouped)
    return NearestByLabel(same, different, found[1].rows[:, 0], same_grouped, different_grouped)


class RecallEntry(Answer):
    """Share of the queries that find one of their label among the first `k`, with its 95 % interval."""

    k: int
    value: float
    interval: Interval


class GroupedRecall(Answer):
    """Recall@1 of the grouped evaluation: no image finds one of its own group, shots of a burst and copies."""

    value: float | None = Field(description="None if no image has another of its label outside its group")
    interval: Interval | None
    queries: int
    groups: int = Field(description="of more than one image")
    images: int = Field(description="in these groups")
    found_by: str = Field(description="where the groups come from, in words")
    certain: bool = Field(description="false if the images of a group are only very similar")
    flattered: bool = Field(description="whether Recall@1 is much higher than this value, or there is no value")


class MeanPrecision(Answer):
    """Mean average precision at R, with its 95 % interval."""

    value: float
    interval: Interval


class ClassEntry(Answer):
    """A label's images that have another one to find, and their Recall@1 with its 95 % interval."""

    label: str
    images: int
    recall_at_1: float
    interval: Interval


class WorstQueryEntry(Answer):
    """A query whose first `misses` hits at least have another label."""

    id: int
    label: str
    hit: ScoredImage
    misses: int


class ScoreHistogram(Answer):
    """Counts of queries by the score of their nearest image of the same and of another label, between the edges."""

    edges: list[float]
    same: list[int]
    different: list[int]


class Confusion(Answer):
    """Count of images of a label whose nearest image has the label `found`, and the first of them."""

    label: str
    found: str
    count: int
    ids: list[int]


class Quality(Answer):
    """Quality of searches among the labelled members, with each that has another of its label as a query.

    Attributes:
        queries: count of these members.
        sampled: whether some members were left out.
        recall_at: for each of `KS`; near-duplicates count as found.
        classes: the lowest Recall@1 first.
        worst: the queries with most misses first, then those with the nearest first hit.
        confusion: the most frequent first.
        problem: why there are too few labels; else None.
    """

    queries: int
    lone: int = Field(description="images without another of their label")
    sampled: bool
    recall_at: list[RecallEntry]
    grouped: GroupedRecall | None = Field(description="None where no two images are of one group")
    map_at_r: MeanPrecision | None
    classes: list[ClassEntry]
    worst: list[WorstQueryEntry]
    histogram: ScoreHistogram | None
    confusion: list[Confusion]
    problem: str | None
    index: dict[str, Any] = Field(description="measurements of the index by the build")


def assess_quality(
    gallery: Gallery, progress: Progress = no_progress, *, duplicates: DuplicateReport | None = None
) -> Quality:
    """Quality of a gallery by an exact search with every labelled member; of more than 20,000 with a sample by label.

    Every query is compared with all labelled members twice: of 200,000 that takes about a minute on one core, and up to
    1.5 GB beside the vectors. `duplicates` are those of the gallery; None finds them first.
    """
    index = _describe_index(gallery)
    every_vector, every_label, every_id, names = gallery.labelled_vectors()
    rows = np.flatnonzero(every_label != UNLABELLED)
    vectors, labels, ids = every_vector[rows], every_label[rows], every_id[rows]
    queries = np.arange(len(ids))
    if len(ids) > MOST_QUERIES:
        queries = sample_by_label(queries, labels, count=MOST_QUERIES)
    try:
        scores = score_retrieval(
            Labelled(vectors[queries], labels[queries], ids[queries]),
            Labelled(vectors, labels, ids),
            ks=KS,
            progress=lambda done, total: progress(done, 2 * total),
        )
    except InputError as error:  # no member has another of its label
        lists, single = ("recall_at", "classes", "worst", "confusion"), ("grouped", "map_at_r", "histogram")
        nothing: dict[str, Any] = {**dict.fromkeys(lists, ()), **dict.fromkeys(single)}
        return Quality(queries=0, lone=0, sampled=False, problem=str(error), index=index, **nothing)
    copies = (duplicates or find_duplicate_groups(gallery)).groups_of(every_id)
    groups = find_groups(every_vector, every_label, read_group_sources(gallery, copies=copies))
    nearest = find_nearest_by_label(
        vectors,
        labels,
        queries,
        groups=np.arange(len(rows)) if groups is None else groups.numbers[rows],
        progress=lambda done, total: progress(total + done, 2 * total),
    )
    texts = [names[label] for label in labels.tolist()]
    return Quality(
        queries=scores.queries,
        lone=scores.lone_queries,
        sampled=len(queries) < len(ids),
        recall_at=[RecallEntry(k=k, **_average(hits)) for k, hits in scores.hits.items()],
        grouped=None if groups is None else _score_grouped(nearest, groups, recall=scores.recall[1]),
        map_at_r=MeanPrecision(**_average(scores.average_precision)),
        classes=_describe_classes(scores.hits[1], scores.labels, names),
        worst=_find_worst(scores.hits, nearest, queries, ids=ids, labels=texts),
        histogram=_count_scores(nearest),
        confusion=_count_confusions(nearest, queries, ids=ids, labels=texts),
        problem=None,
        index=index,
    )


def _average(scores: Scores) -> dict[str, Any]:
    """Mean of (Q,) scores, and its 95 % interval."""
    return {"value": scores.mean(), "interval": bootstrap_interval(scores, seed=_SEED)}


def _score_grouped(nearest: NearestByLabel, groups: Groups, *, recall: float) -> GroupedRecall:
    findable = np.isfinite(nearest.same_grouped)
    found = (nearest.same_grouped >= nearest.different_grouped)[findable].astype(np.float64)
    value = float(found.mean()) if len(found) else None
    return GroupedRecall(
        value=value,
        interval=None if value is None else bootstrap_interval(found, seed=_SEED),
        queries=len(found),
        groups=groups.count,
        images=groups.images,
        found_by=groups.found_by,
        certain=groups.is_certain,
        flattered=value is None or recall - value > WORTHLESS,
    )


def _describe_classes(hits: Any, labels: Labels, names: Sequence[str]) -> list[ClassEntry]:
    order = np.argsort(labels, kind="stable")
    found = []
    for rows in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        recall, interval = float(hits[rows].mean()), bootstrap_interval(hits[rows], seed=_SEED)
        found.append(ClassEntry(label=names[labels[rows[0]]], images=len(rows), recall_at_1=recall, interval=interval))
    return sorted(found, key=lambda one: (one.recall_at_1, -one.images, one.label))


def _find_worst(
    hits: Mapping[int, Any], nearest: NearestByLabel, queries: Ids, *, ids: Ids, labels: Sequence[str]
) -> list[WorstQueryEntry]:
    """Worst of the (n,) rows `queries`, by ids and labels of all rows."""
    findable = np.flatnonzero(np.isfinite(nearest.same))  # in the order of the hits
    misses = np.zeros(len(findable), dtype=np.int64)
    for k in KS:
        misses[hits[k] == 0] = k
    misses[nearest.different_row[findable] == NO_ID] = 0
    order = np.lexsort((-nearest.different[findable], -misses))[:_WORST]
    found = []
    for position in order[misses[order] > 0].tolist():
        query = findable[position]
        row, other = queries[query], nearest.different_row[query]
        hit = ScoredImage(id=ids[other], label=labels[other], score=nearest.different[query])
        found.append(WorstQueryEntry(id=ids[row], label=labels[row], hit=hit, misses=misses[position]))
    return found


def _count_scores(nearest: NearestByLabel) -> ScoreHistogram:
    """Histograms of both sides over the same bins."""
    sides = [side[np.isfinite(side)] for side in (nearest.same, nearest.different)]
    every = np.concatenate(sides)
    edges = np.linspace(every.min(), max(every.max(), every.min() + 1e-6), _BINS + 1)
    same, different = (np.histogram(side.clip(edges[0], edges[-1]), bins=edges)[0].tolist() for side in sides)
    return ScoreHistogram(edges=edges.tolist(), same=same, different=different)


def _count_confusions(nearest: NearestByLabel, queries: Ids, *, ids: Ids, labels: Sequence[str]) -> list[Confusion]:
    confused: dict[tuple[str, str], list[int]] = {}
    for query in np.flatnonzero(np.isfinite(nearest.same) & (nearest.different > nearest.same)).tolist():
        row, other = int(queries[query]), int(nearest.different_row[query])
        confused.setdefault((labels[row], labels[other]), []).append(int(ids[row]))
    ordered = sorted(confused.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [
        Confusion(label=label, found=found, count=len(some), ids=sorted(some)[:_PAIR_IDS])
        for (label, found), some in ordered[:_PAIRS]
    ]


def _describe_index(gallery: Gallery) -> dict[str, Any]:
    manifest, index = gallery.manifest, gallery.manifest.index
    named = ("type", "factory", "reason", "parameters", "recall_at_10", "recall_error", "memory_bytes")
    return {
        **{name: index.get(name) for name in named},
        "explanation": KINDS[index["type"]].explanation,
        "latency_ms": index.get("latency_ms_median"),
        "images": gallery.count,
        "deleted": manifest.counts.get("deleted"),
        "embedding_dim": manifest.embedding_dim,
    }
