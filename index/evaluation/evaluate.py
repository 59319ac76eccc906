"""Retrieval quality on labelled images: of a finished gallery, or of a model on a folder, all in memory."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import UNLABELLED, Floats, Ids, Labels, Vectors
from index.duplicates.gallery_duplicates import Fingerprint
from index.embedding.engine import ThreadedEngine
from index.errors import InputError
from index.evaluation.group_sources import find_copies, gather_group_sources, read_group_sources
from index.evaluation.groups import COLUMN, WORTHLESS, Groups, GroupSources, find_groups, name_group
from index.evaluation.metrics import Labelled, RetrievalScores, score_retrieval
from index.evaluation.reranked import Reranked, score_reranked
from index.filters.condition import Condition
from index.gallery.gallery import Gallery, number_labels
from index.items import EmbeddedItem, Place
from index.model.embedder import Embedder
from index.progress import Progress, no_progress
from index.sources.local_source import TableSource
from index.sources.registry import find_source
from index.sources.table_rows import read_column, read_labels
from index.text import printable_path
from index.vectors.clusters import cluster_embeddings

logger = logging.getLogger(__name__)
_SEED = 0  # of k-means


@dataclass(frozen=True, slots=True)
class ClassScore:
    """One label's queries, and the Recall@1 of these alone."""

    queries: int
    recall_at_1: float


@dataclass(frozen=True, slots=True)
class GroupedScores:
    """Scores of the grouped evaluation: no image finds one of its own group. None where nothing is left to find."""

    groups: Groups
    scores: RetrievalScores | None

    def to_json(self) -> dict[str, object]:
        """Groups and means; no means without queries."""
        found = self.groups.to_json()
        return {**found, **({"queries": 0} if self.scores is None else self.scores.to_json())}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluation of labelled images, with what a report needs.

    `per_class` is by label, sorted; `skipped` counts unusable files; `grouped` is None without groups, and for queries
    from elsewhere.
    """

    scores: RetrievalScores
    per_class: dict[str, ClassScore]
    nmi: float | None
    skipped: int
    grouped: GroupedScores | None = None
    reranked: Reranked | None = None

    @property
    def is_flattered(self) -> bool:
        """Whether groups make Recall@1 too good to tell how new photos will fare."""
        if self.grouped is None:
            return False
        return self.grouped.scores is None or self.scores.recall[1] - self.grouped.scores.recall[1] > WORTHLESS

    def to_json(self) -> dict[str, object]:
        """The document that `evaluate --json` prints."""
        return {
            **self.scores.to_json(),
            "mean_class_recall_at_1": self.scores.mean_class_recall(1),
            "nmi": self.nmi,
            "skipped": self.skipped,
            "grouped": None if self.grouped is None else self.grouped.to_json(),
            "reranked": None if self.reranked is None else self.reranked.to_json(),
            "per_class": {name: asdict(score) for name, score in self.per_class.items()},
        }


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Labelled images: (N, D) float32 unit `vectors`, labels, (N,) int64 `ids`, and what groups them.

    `skipped` counts the files that could not be used; `are_queries` is (N,) bool, None: all are.
    """

    vectors: Vectors
    labels: Sequence[str | None]
    ids: Ids
    group_sources: GroupSources
    skipped: int = 0
    are_queries: npt.NDArray[np.bool_] | None = None


def read_members(gallery: Gallery, *, where: Condition | None = None, groups: str | None = None) -> LabelledImages:
    """Members of a gallery; queries are those that `where` keeps.

    `groups` is the column of the metadata that defines the groups.
    """
    with gallery.catalog() as catalog:
        labels = catalog.labels(status="indexed")
        kept = None if where is None else np.isin(gallery.ids, catalog.matching_ids(where))
    if kept is not None and not any(label is not None for label, keeps in zip(labels, kept, strict=True) if keeps):
        raise InputError("the filter keeps no image that has a label, so there is nothing to evaluate")
    group_sources = read_group_sources(gallery, column=groups)
    return LabelledImages(gallery.vectors(gallery.ids), labels, gallery.ids, group_sources, are_queries=kept)


def evaluate_images(
    members: LabelledImages,
    *,
    queries: LabelledImages | None = None,
    groups: Groups | None = None,
    ks: Sequence[int],
    with_nmi: bool = False,
    with_rerank: bool = False,
    scoring: Progress = no_progress,
) -> Evaluation:
    """Scores of the queries among the labelled members; nobody can tell whether an unlabelled result is right.

    Args:
        queries: images from elsewhere, which find every labelled member. None: members, each without itself.
        groups: of the members; None finds them.
        ks: the K of Recall@K; 1 is added if it is missing.
        with_nmi: also cluster the queries.
        with_rerank: also rank a sample of the queries again by shared neighbours.
        scoring: called with (done, total) queries.
    """
    every_label, names = number_labels(members.labels)
    rows = np.flatnonzero(every_label != UNLABELLED)
    gallery = Labelled(members.vectors[rows], every_label[rows], members.ids[rows])
    if queries is not None:
        number: dict[str | None, int] = {None: UNLABELLED, **{name: place for place, name in enumerate(names)}}
        # Other labels get numbers above, so that they count as lone.
        numbers = [number.setdefault(label, len(number) - 1) for label in queries.labels]
        asked = Labelled(queries.vectors, np.array(numbers, dtype=np.int64))
    else:
        rows = rows if members.are_queries is None else rows[members.are_queries[rows]]
        asked = Labelled(members.vectors[rows], every_label[rows], members.ids[rows])
    ks = sorted({1, *ks})
    scores = score_retrieval(asked, gallery, ks=ks, progress=scoring)
    reranked = score_reranked(asked, gallery, progress=scoring) if with_rerank else None
    grouped = None
    if queries is None:
        groups = groups or find_groups(members.vectors, every_label, members.group_sources)
    if queries is None and groups is not None:
        within = replace(gallery, groups=groups.numbers[every_label != UNLABELLED])
        try:
            grouped = GroupedScores(groups, score_retrieval(replace(asked, groups=groups.numbers[rows]), within, ks=ks))
        except InputError:  # every image has those of its label in its own group
            grouped = GroupedScores(groups, None)
    counts, recall = Counter(scores.labels.tolist()), scores.per_class_recall(1)
    return Evaluation(
        scores=scores,
        per_class={names[label]: ClassScore(counts[label], recall[label]) for label in recall},
        nmi=nmi(asked.vectors, asked.labels, seed=_SEED) if with_nmi else None,
        skipped=members.skipped + (0 if queries is None else queries.skipped),
        grouped=grouped,
        reranked=reranked,
    )


def embed_labelled(
    source: Path, *, embedder: Embedder, groups: str | None = None, progress: Progress = no_progress
) -> LabelledImages:
    """Embed every usable image of a source; the log counts the others by reason.

    The label is the first folder below the source; of a table, only rows with a label are used. The column `groups`
    (None: `group`) defines the groups.
    """
    found, skipped = find_source(str(source)), Counter[str]()
    items: list[tuple[Place, str | None, str | None]] = []
    if isinstance(found, TableSource):  # which must have labels here
        named = read_column(source, groups or COLUMN)
        for path, label in read_labels(source).items():
            items.append((Place(Path(path), printable_path(path)), label, named.get(path)))
    else:
        for item in found.scan():
            if item.problem is not None:
                skipped[item.problem.reason] += 1
            else:
                items.append((found.locate(item), item.label, name_group(item.metadata, groups)))
    embedded: list[EmbeddedItem] = []
    for batch in ThreadedEngine(embedder).embed((number, place) for number, (place, _, _) in enumerate(items)):
        embedded += batch
        progress(len(embedded), len(items))
    embedded.sort(key=lambda item: item.id)
    skipped.update(item.problem.reason for item in embedded if item.problem is not None)
    usable = [item for item in embedded if item.vector is not None]
    vectors = [item.vector for item in usable if item.vector is not None]
    labels = [items[item.id][1] for item in usable]
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    if not vectors:
        where = "in the folder" if source.is_dir() else "with a label in the label file"
        raise InputError(f"{printable_path(str(source))}: no usable image {where}: {reasons or 'it has no files'}")
    if skipped:
        logger.warning(
            "%s: skipped %d of %d files: %s", source, skipped.total(), len(vectors) + skipped.total(), reasons
        )
    places, given = [items[item.id][0] for item in usable], [items[item.id][2] for item in usable]
    if groups is not None and not any(given):
        raise InputError(f"{printable_path(str(source))}: no image has a value in a column {groups!r}")
    rows = np.stack(vectors)
    prints = [Fingerprint(row, item.sha256 or f"#{row}", item.phash) for row, item in enumerate(usable)]
    copies = find_copies(prints, lambda wanted: rows[wanted])
    group_sources = gather_group_sources(places, given=given, copies=copies, column=groups)
    return LabelledImages(rows, labels, np.arange(len(vectors)), group_sources, skipped.total())


def nmi(embeddings: Floats, labels: Labels, *, seed: int) -> float:
    """NMI of the labels with as many k-means clusters as there are labels, in [0, 1].

    Args:
        embeddings: (N, D) float32 unit rows.
        labels: (N,) int64; rows that are `UNLABELLED` are left out.
    """
    labelled = labels != UNLABELLED
    if not labelled.any():
        raise InputError(f"none of {len(labels)} images has a label; NMI needs class folders or a label file")
    known = labels[labelled]
    clusters = cluster_embeddings(embeddings[labelled], clusters=len(np.unique(known)), seed=seed)
    return normalised_mutual_information(known, clusters)


def normalised_mutual_information(labels: Labels, clusters: Labels) -> float:
    """Mutual information of two partitions over the mean of their entropies, in [0, 1].

    Two partitions of one part each agree: 1. Where only one of them has a single part, it says nothing: 0.

    Args:
        labels, clusters: (N,) int64, the two parts of each item; only equality counts.
    """
    if len(labels) != len(clusters):
        raise ValueError(f"{len(labels)} labels and {len(clusters)} clusters are not of the same items")
    if not len(labels):
        raise InputError("there is nothing to compare: no item is in a cluster")
    _, label, label_counts = np.unique(labels, return_inverse=True, return_counts=True)
    _, cluster, cluster_counts = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(label_counts) == len(cluster_counts) == 1:
        return 1.0
    # the pairs that occur, never the whole table: labels x clusters may be 10^8
    pairs, joint_counts = np.unique(label * len(cluster_counts) + cluster, return_counts=True)
    label_share, cluster_share = label_counts / len(labels), cluster_counts / len(labels)
    joint = joint_counts / len(labels)
    expected = label_share[pairs // len(cluster_counts)] * cluster_share[pairs % len(cluster_counts)]
    information = float((joint * np.log(joint / expected)).sum())
    mean_entropy = -sum(float((shares * np.log(shares)).sum()) for shares in (label_share, cluster_share)) / 2
    return min(1.0, max(0.0, information / mean_entropy))
