"""How well a gallery finds its own labels, where it fails, and what its index costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from pydantic import TypeAdapter

from index.arrays import NO_ID, UNLABELLED, Ids, Labels
from index.errors import InputError
from index.evaluation.metrics import RetrievalScores, bootstrap_interval, score_retrieval
from index.gallery.gallery import Gallery
from index.progress import Progress, no_progress
from index.vectors.kinds.registry import KINDS
from retrieval_app.insights.duplicate_groups import DuplicateGroups, find_duplicate_groups
from retrieval_app.insights.nearest_by_label import NearestByLabel, find_nearest_by_label

KS = (1, 2, 4, 8, 16, 32)
MOST_QUERIES = 20_000
_WORST = 60
_PAIRS = 100
_PAIR_IDS = 60
_BINS = 40
_SEED = 0

Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RecallAt:
    """Share (0..1) of the members that find one of their label among the first `k`, and its 95 % interval."""

    k: int
    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class ClassQuality:
    """The members of a label that have another one to find, and their Recall@1 with its 95 % interval."""

    label: str
    images: int
    recall_at_1: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class WorstQuery:
    """A member that meets another label first.

    Attributes:
        id, label: of the member.
        hit_id, hit_label, hit_score: of its nearest.
        misses: how many of its first hits at least have another label; one of `KS`.
    """

    id: int
    label: str
    hit_id: int
    hit_label: str
    hit_score: float
    misses: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many members have their nearest of the `same` and of a `different` label between two of the `edges`."""

    edges: tuple[float, ...]
    same: tuple[int, ...]
    different: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Confusion:
    """Members of a `label` whose nearest has the label `found`: how many, and the `ids` of the first of them."""

    label: str
    found: str
    count: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What searches with every labelled member that has another one of its label give.

    Attributes:
        queries: such members.
        lone: labelled members that are alone with their label, and so have nothing to find.
        sampled: whether some members did not ask.
        recall_at: for each of `KS`; a duplicate of a member may be what it finds.
        recall_without_copies: Recall@1 where no member finds a duplicate of itself; None where none has another
            to find.
        map_at_r, map_interval: mean average precision at R, and its 95 % interval.
        classes: the lowest Recall@1 first.
        worst: those that search longest in vain first, of equals the one whose first hit is nearest.
        histogram: of the nearest of the same and of another label.
        confusion: the queries whose nearest labelled member has another label, by both, the most frequent first.
    """

    queries: int
    lone: int
    sampled: bool
    recall_at: tuple[RecallAt, ...]
    recall_without_copies: RecallAt | None
    map_at_r: float
    map_interval: Interval
    classes: tuple[ClassQuality, ...]
    worst: tuple[WorstQuery, ...]
    histogram: Histogram
    confusion: tuple[Confusion, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """What is known of a gallery's searches.

    Attributes:
        retrieval: None where labels are too few to tell.
        problem: why, for people.
        index: what the manifest says of it, and how it searches.
    """

    retrieval: Retrieval | None
    problem: str | None
    index: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As in the API."""
        found = self.retrieval
        described: dict[str, Any] = {"recall_at": [], "map_at_r": None, "queries": 0, "lone": 0, "sampled": False}
        described["recall_without_copies"] = None
        described |= {"classes": [], "worst": [], "histogram": None, "confusion": []}
        if found is not None:
            described = _describe_retrieval(found)
        return {**described, "problem": self.problem, "index": self.index}


def assess_quality(
    gallery: Gallery, progress: Progress = no_progress, *, duplicates: DuplicateGroups | None = None
) -> Quality:
    """Search with every labelled member, itself removed, exactly; of more than 20,000 with a random sample.

    5,324 members of 64 numbers take 3 s on one core. Every member that asks is compared with all members twice: for the
    sample of 200,000 that is about a minute (measured with a fifth of it), and up to 1.5 GB beside the vectors where
    labels are large.

    Args:
        gallery: that is assessed.
        progress: told (done, total) of both comparisons.
        duplicates: of the gallery; None finds them first.

    Raises:
        GalleryError: the gallery is damaged.
    """
    index = _describe_index(gallery)
    vectors, labels, ids, names = gallery.labelled_vectors()
    asking = np.arange(len(ids))
    if (labels != UNLABELLED).sum() > MOST_QUERIES:
        labelled = np.flatnonzero(labels != UNLABELLED)
        asking = np.sort(np.random.default_rng(_SEED).choice(labelled, MOST_QUERIES, replace=False))
    try:
        scores = score_retrieval(
            vectors[asking],
            labels[asking],
            gallery=vectors,
            gallery_labels=labels,
            gallery_ids=ids,
            query_ids=ids[asking],
            ks=KS,
            progress=lambda done, total: progress(done, 2 * total),
        )
    except InputError as error:  # no member has another of its label to find
        return Quality(None, str(error), index)
    rows = np.flatnonzero(labels != UNLABELLED)
    asked = np.searchsorted(rows, asking[labels[asking] != UNLABELLED])
    vectors, labels, ids = vectors[rows], labels[rows], ids[rows]
    nearest = find_nearest_by_label(
        vectors,
        labels,
        asked,
        groups=(duplicates or find_duplicate_groups(gallery)).groups_of(ids),
        progress=lambda done, total: progress(total + done, 2 * total),
    )
    members = _Members(labels, ids, names, asked)
    return Quality(_describe(scores, nearest, members), None, index)


@dataclass(frozen=True, slots=True)
class _Members:
    """(N,) labels as positions in the names and (N,) ids of the labelled members, and (n,) rows of those that asked."""

    labels: Labels
    ids: Ids
    names: Sequence[str]
    asked: Ids


def _describe(scores: RetrievalScores, nearest: NearestByLabel, members: _Members) -> Retrieval:
    average = scores.average_precision
    return Retrieval(
        queries=scores.queries,
        lone=scores.lone_queries,
        sampled=len(members.asked) < len(members.ids),
        recall_at=tuple(
            RecallAt(k, value, bootstrap_interval(scores.hits[k], seed=_SEED))
            for k, value in scores.recall.items()
        ),
        recall_without_copies=_recall_without_copies(nearest),
        map_at_r=float(average.mean()),
        map_interval=bootstrap_interval(average, seed=_SEED),
        classes=_describe_classes(scores.hits[1], scores.labels, members.names),
        worst=_find_worst(scores.hits, nearest, members),
        histogram=_count_scores(nearest),
        confusion=_count_confusions(nearest, members),
    )


def _recall_without_copies(nearest: NearestByLabel) -> RecallAt | None:
    asked = np.isfinite(nearest.same_apart)
    if not asked.any():
        return None
    found = (nearest.same_apart >= nearest.different_apart)[asked].astype(np.float64)
    return RecallAt(1, float(found.mean()), bootstrap_interval(found, seed=_SEED))


def _describe_classes(hits: Any, labels: Labels, names: Sequence[str]) -> tuple[ClassQuality, ...]:
    order = np.argsort(labels, kind="stable")
    found = []
    for rows in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        recall, interval = float(hits[rows].mean()), bootstrap_interval(hits[rows], seed=_SEED)
        found.append(ClassQuality(names[labels[rows[0]]], len(rows), recall, interval))
    return tuple(sorted(found, key=lambda one: (one.recall_at_1, -one.images, one.label)))


def _find_worst(hits: Mapping[int, Any], nearest: NearestByLabel, members: _Members) -> tuple[WorstQuery, ...]:
    queries = np.flatnonzero(np.isfinite(nearest.same))  # in the order of the hits
    misses = np.zeros(len(queries), dtype=np.int64)
    for k in KS:
        misses[hits[k] == 0] = k
    misses[nearest.different_row[queries] == NO_ID] = 0  # it met none but images without a label
    order = np.lexsort((-nearest.different[queries], -misses))[:_WORST]
    found = []
    for place in order[misses[order] > 0].tolist():
        query = int(queries[place])
        row, other = int(members.asked[query]), int(nearest.different_row[query])
        found.append(
            WorstQuery(
                id=int(members.ids[row]),
                label=members.names[members.labels[row]],
                hit_id=int(members.ids[other]),
                hit_label=members.names[members.labels[other]],
                hit_score=float(nearest.different[query]),
                misses=int(misses[place]),
            )
        )
    return tuple(found)


def _count_scores(nearest: NearestByLabel) -> Histogram:
    """Over bins that both share."""
    sides = [side[np.isfinite(side)] for side in (nearest.same, nearest.different)]
    every = np.concatenate(sides)
    edges = np.linspace(every.min(), max(every.max(), every.min() + 1e-6), _BINS + 1)
    same, different = (np.histogram(side.clip(edges[0], edges[-1]), bins=edges)[0].tolist() for side in sides)
    return Histogram(tuple(edges.tolist()), tuple(same), tuple(different))


def _count_confusions(nearest: NearestByLabel, members: _Members) -> tuple[Confusion, ...]:
    confused = np.flatnonzero(np.isfinite(nearest.same) & (nearest.different > nearest.same))
    asked = members.asked[confused]
    own, other = members.labels[asked], members.labels[nearest.different_row[confused]]
    ids: dict[tuple[int, int], list[int]] = {}
    for label, found, image_id in zip(own.tolist(), other.tolist(), members.ids[asked].tolist(), strict=True):
        ids.setdefault((label, found), []).append(image_id)
    ordered = sorted(ids.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return tuple(
        Confusion(members.names[label], members.names[found], len(some), tuple(sorted(some)[:_PAIR_IDS]))
        for (label, found), some in ordered[:_PAIRS]
    )


def _describe_index(gallery: Gallery) -> dict[str, Any]:
    manifest, index = gallery.manifest, gallery.manifest.index
    return {
        "type": index.get("type"),
        "explanation": KINDS[index["type"]].explanation,
        "factory": index.get("factory"),
        "reason": index.get("reason"),
        "parameters": index.get("parameters"),
        "recall_at_10": index.get("recall_at_10"),
        "recall_error": index.get("recall_error"),
        "latency_ms": index.get("latency_ms_median"),
        "memory_bytes": index.get("memory_bytes"),
        "images": gallery.count,
        "deleted": manifest.counts.get("deleted"),
        "embedding_dim": manifest.embedding_dim,
    }


def _describe_retrieval(found: Retrieval) -> dict[str, Any]:
    values = TypeAdapter(Retrieval).dump_python(found, mode="json")
    mean = {"value": values.pop("map_at_r"), "interval": values.pop("map_interval")}
    worst = [
        {
            "id": one.id,
            "label": one.label,
            "hit": {"id": one.hit_id, "label": one.hit_label, "score": one.hit_score},
            "misses": one.misses,
        }
        for one in found.worst
    ]
    return {**values, "map_at_r": mean, "worst": worst}
