"""Retrieval quality on labelled images: of a finished gallery, or of a model on a folder, all in memory."""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from index.arrays import UNLABELLED, Ids, Labels, Mask, Vectors, number_labels
from index.duplicates.duplicate_config import DuplicateConfig
from index.duplicates.near_duplicates import Fingerprint, ReadVectors, find_gallery_duplicates
from index.embedding.engine import ThreadedEngine
from index.errors import InputError
from index.evaluation.groups import COLUMN, WORTHLESS, Groups, GroupSources, find_groups, name_group
from index.evaluation.metrics import Labelled, RetrievalScores, score_retrieval
from index.filters.condition import Condition
from index.gallery.gallery import Gallery
from index.items import EmbeddedItem, Place
from index.model.embedder import Embedder
from index.network.remote_store import has_time
from index.progress import Progress, no_progress
from index.sources.local_source import TableSource
from index.sources.registry import find_source
from index.sources.table_rows import read_column, read_labels
from index.text import printable_path

logger = logging.getLogger(__name__)
MOST_QUERIES = 20_000


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
        found = self.groups.to_json()
        return {**found, **({"queries": 0} if self.scores is None else self.scores.to_json())}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluation of labelled images; `skipped` counts unusable files, `grouped` is None where there are no groups.

    `sampled_from` is the number of all queries where only a sample of them was asked.
    """

    scores: RetrievalScores
    per_class: dict[str, ClassScore]
    skipped: int
    grouped: GroupedScores | None = None
    sampled_from: int | None = None

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
            "skipped": self.skipped,
            "sampled_from": self.sampled_from,
            "grouped": None if self.grouped is None else self.grouped.to_json(),
            "per_class": {name: asdict(score) for name, score in self.per_class.items()},
        }


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Labelled images: (N, D) float32 unit `vectors` and (N,) int64 `ids`; (N,) bool `are_queries`, None: all are."""

    vectors: Vectors
    labels: Sequence[str | None]
    ids: Ids
    group_sources: GroupSources
    skipped: int = 0
    are_queries: Mask | None = None


def read_members(gallery: Gallery, *, where: Condition | None = None, groups: str | None = None) -> LabelledImages:
    """Members of a gallery; queries are those that `where` keeps. The metadata `groups` defines their groups."""
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
    exact: bool = False,
    scoring: Progress = no_progress,
) -> Evaluation:
    """Scores of the queries among the labelled members; unlabelled results would be neither right nor wrong.

    Of more than `MOST_QUERIES` members a sample by label is asked, unless `exact`.

    `queries` are images from elsewhere, which find every labelled member; None: members, each without itself. `groups`
    are of the members that ask; None finds them. Recall@K is for the `ks` and 1.
    """
    every_label, names = number_labels(members.labels)
    rows = np.flatnonzero(every_label != UNLABELLED)
    gallery, sampled_from = Labelled(members.vectors[rows], every_label[rows], members.ids[rows]), None
    if queries is not None:
        number: dict[str | None, int] = {None: UNLABELLED, **{name: place for place, name in enumerate(names)}}
        # Other labels get numbers above, so that they count as lone.
        numbers = [number.setdefault(label, len(number) - 1) for label in queries.labels]
        asked = Labelled(queries.vectors, np.array(numbers, dtype=np.int64))
    else:
        rows = rows if members.are_queries is None else rows[members.are_queries[rows]]
        if len(rows) > MOST_QUERIES and not exact:
            sampled_from, rows = len(rows), sample_by_label(rows, every_label, count=MOST_QUERIES)
        asked = Labelled(members.vectors[rows], every_label[rows], members.ids[rows])
    ks, grouped = sorted({1, *ks}), None
    groups = None if queries is not None else groups or find_groups(members.vectors, every_label, members.group_sources)
    times = 1 if groups is None else 2
    scores = score_retrieval(asked, gallery, ks=ks, progress=lambda done, of: scoring(done, times * of))
    if groups is not None:
        within = replace(gallery, groups=groups.numbers[every_label != UNLABELLED])
        with_groups = replace(asked, groups=groups.numbers[rows])
        try:
            found = score_retrieval(with_groups, within, ks=ks, progress=lambda done, of: scoring(of + done, 2 * of))
            grouped = GroupedScores(groups, found)
        except InputError:  # every image has those of its label in its own group
            grouped = GroupedScores(groups, None)
    counts, recall = Counter(scores.labels.tolist()), scores.per_class_recall(1)
    return Evaluation(
        scores=scores,
        per_class={names[label]: ClassScore(counts[label], recall[label]) for label in recall},
        skipped=members.skipped + (0 if queries is None else queries.skipped),
        grouped=grouped,
        sampled_from=sampled_from,
    )


def sample_by_label(rows: Ids, labels: Labels, *, count: int) -> Ids:
    """`count` of (n,) rows, ascending: at random, of each label in proportion to its rows."""
    by_label = np.lexsort((np.random.default_rng(0).random(len(rows)), labels[rows]))
    every = (np.arange(count) * (len(rows) / count)).astype(np.int64)
    return np.sort(rows[by_label[every]])


def embed_labelled(
    source: Path, *, embedder: Embedder, groups: str | None = None, progress: Progress = no_progress
) -> LabelledImages:
    """Embed every usable image of a source, labelled by its first folder or a table; the log counts others by reason.

    The column `groups` (None: `group`) defines the groups.
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
        raise InputError(f"no usable image {where}: {reasons or 'it has no files'}", at=source)
    if skipped:
        logger.warning(
            "%s: skipped %d of %d files: %s", source, skipped.total(), len(vectors) + skipped.total(), reasons
        )
    places, given = [items[item.id][0] for item in usable], [items[item.id][2] for item in usable]
    if groups is not None and not any(given):
        raise InputError(f"no image has a value in a column {groups!r}", at=source)
    rows = np.stack(vectors)
    prints = [Fingerprint(row, item.sha256 or f"#{row}", item.phash) for row, item in enumerate(usable)]
    copies = find_copies(prints, lambda wanted: rows[wanted])
    group_sources = gather_group_sources(places, given=given, copies=copies, column=groups)
    return LabelledImages(rows, labels, np.arange(len(vectors)), group_sources, skipped.total())


def read_group_sources(
    gallery: Gallery, *, column: str | None = None, copies: Ids | None = None, near_copies: bool = True
) -> GroupSources:
    """Sources of groups of the members of a gallery, in the order of their ids; members of archives have no times.

    The metadata `column` defines the groups; None: `group`, where there is one. Copies are looked for unless given, of
    equal bytes alone without `near_copies`.
    """
    names, times, given, prints = [], [], list[str | None](), []
    with gallery.catalog() as catalog:
        for row in catalog.rows(status="indexed"):
            names.append(f"{row.source}/{row.path}")
            is_timed = row.archive is None and has_time(row.mtime_ns)
            times.append(row.mtime_ns * 1e-9 if is_timed else np.nan)
            given.append(name_group(row.metadata, column))
            prints.append(Fingerprint(row.id, row.sha256 or f"#{row.id}", row.phash, labelled=row.label is not None))
    if column is not None and not any(given):
        raise InputError(f"no image has a value in its metadata for {column!r}", at=gallery.path)
    if copies is None:
        copies = find_copies(prints, gallery.vectors, near=near_copies)
    return GroupSources(names, np.array(times, dtype=np.float64), given=given, copies=copies, column=column or COLUMN)


def gather_group_sources(
    places: Sequence[Place], *, given: Sequence[str | None], copies: Ids, column: str | None = None
) -> GroupSources:
    """Sources of groups of images at these places; the others as `GroupSources` has them."""
    names = [str(place.file) if place.offset is None else f"{place.file}/{place.name}" for place in places]
    times = np.full(len(places), np.nan)  # of modification; NaN for members of archives and remote files
    for row, place in enumerate(places):
        if place.offset is None and place.store is None:
            with suppress(OSError):
                times[row] = place.file.stat().st_mtime
    return GroupSources(names, times, given=given, copies=copies, column=column or COLUMN)


def find_copies(prints: Sequence[Fingerprint], read: ReadVectors, *, near: bool = True) -> Ids:
    """(N,) int64, the same for equal files, and for near-duplicates if `near`."""
    kept = find_gallery_duplicates(prints, read, config=DuplicateConfig() if near else None)
    return np.array([kept.get(image.id, image.id) for image in prints], dtype=np.int64)
