"""Validation searches: validation images against each other, ungrouped and grouped, and against the training images."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn

from index.arrays import Doubles, Floats, Ids, Labels, normalise_rows
from index.errors import InputError
from index.evaluation.groups import Groups, GroupSources, find_groups, makes_a_difference, number_equal
from index.evaluation.metrics import DEFAULT_KS, ExpectedRelevance, Labelled, RetrievalScores, score_retrieval
from index.images.taken_time import read_taken_time

_PAIRS_AT_ONCE = 1 << 15


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """Features (N, F) float32 and labels (N,) int64 of images that do not train.

    `is_gallery` (N,) bool separates gallery and queries; None: each image searches all others. `ks` are the K of
    Recall@K. `groups` (N,) int64 are equal for photos of one group, which do not find each other.
    `posteriors` (N, C) are of the true class; images are then relevant to each other by the probability of one class.
    """

    features: Floats
    labels: np.ndarray
    is_gallery: np.ndarray | None = None
    ks: Sequence[int] = DEFAULT_KS
    groups: np.ndarray | None = None
    posteriors: csr_array | None = None

    def score(self, embeddings: Floats) -> RetrievalScores:
        """Retrieval scores of (N, D) unit rows; an `InputError` if no query has an image to find."""
        asked, gallery = self.parts()
        groups = self.groups
        return score_retrieval(
            *(
                Labelled(embeddings[rows], self.labels[rows], rows, None if groups is None else groups[rows])
                for rows in (asked, gallery)
            ),
            ks=self.ks,
            expected=None if self.posteriors is None else self._expect(self.posteriors, asked, gallery),
        )

    def _expect(self, posteriors: csr_array, asked: Ids, gallery: Ids) -> ExpectedRelevance:
        """Relevance q_i . q_j of query i and gallery image j, with q the posteriors."""
        counts = posteriors[asked] @ posteriors[gallery].sum(axis=0)
        # Less the images of the query's group, itself among them.
        groups = np.arange(len(self.labels)) if self.groups is None else np.unique(self.groups, return_inverse=True)[1]
        shape = (int(groups.max()) + 1, len(gallery))
        members = csr_array((np.ones(len(gallery)), (groups[gallery], np.arange(len(gallery)))), shape=shape)
        counts -= _multiply_rows(posteriors, members @ posteriors[gallery], rows=asked, others=groups[asked])
        return ExpectedRelevance(
            lambda queries, found: _multiply_rows(posteriors, posteriors, rows=asked[queries], others=gallery[found]),
            counts,
        )

    def can_find(self) -> bool:
        """Whether some query has an image of its label outside its group."""
        asked, gallery = self.parts()
        groups = np.arange(len(self.labels)) if self.groups is None else self.groups
        shown: dict[int, set[int]] = {}
        for label, group in zip(self.labels[gallery].tolist(), groups[gallery].tolist(), strict=True):
            shown.setdefault(label, set()).add(group)
        queries = zip(self.labels[asked].tolist(), groups[asked].tolist(), strict=True)
        return any(shown.get(label, set()) - {group} for label, group in queries)

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted int64 row numbers of the queries, and of the gallery."""
        rows = np.arange(len(self.labels), dtype=np.int64)
        return (rows, rows) if self.is_gallery is None else (rows[~self.is_gallery], rows[self.is_gallery])


def _multiply_rows(first: csr_array, second: csr_array, *, rows: Ids, others: Ids) -> Doubles:
    """(P,) products of the rows `rows` (P,) of the first with the rows `others` (P,) of the second."""
    products = np.empty(len(rows))
    for start in range(0, len(rows), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        products[part] = first[rows[part]].multiply(second[others[part]]).sum(axis=1)
    return products


@torch.inference_mode()
def embed_features(head: nn.Module, features: Floats) -> Floats:
    """(N, F) float32 features to (N, D) float32 unit rows, in blocks, on the head's device."""
    tensor = next(iter(head.state_dict().values()), None)
    device = tensor.device if tensor is not None else torch.device("cpu")
    blocks = [head(part.to(device)).cpu().numpy() for part in torch.from_numpy(features).split(8192)]
    return np.concatenate(blocks)


def read_file_sources(paths: Sequence[Path], *, groups: Sequence[str | None], hashes: Sequence[str]) -> GroupSources:
    """Group sources of N image files, with groups from a table and the SHA-256 of the files."""
    times = np.full(len(paths), np.nan)
    for row, path in enumerate(paths):
        if (taken := read_taken_time(path)) is not None:
            times[row] = taken
            continue
        with suppress(OSError):
            times[row] = path.stat().st_mtime
    return GroupSources([str(path) for path in paths], times, given=groups, copies=number_equal(hashes))


@dataclass(frozen=True, slots=True)
class KnownImages:
    """Images for searches: (N, F) float32 features, label names, hashes and group sources.

    `is_gallery` and `ks` as in `ValidationSet`.
    """

    features: Floats
    labels: Sequence[str]
    hashes: Sequence[str]
    group_sources: GroupSources
    is_gallery: np.ndarray | None = None
    ks: Sequence[int] = DEFAULT_KS

    @property
    def numbers(self) -> Labels:
        """(N,) int64, the same for images of one label."""
        return number_equal(self.labels)

    @property
    def ungrouped(self) -> ValidationSet:
        """Search of the images among each other."""
        return ValidationSet(self.features, self.numbers, self.is_gallery, self.ks)


@dataclass(frozen=True, slots=True)
class SearchScores:
    """Scores of one head in `Searches`; None where nothing can be found."""

    ungrouped: RetrievalScores
    grouped: RetrievalScores | None
    against: RetrievalScores | None
    has_groups: bool = False

    @property
    def telling(self) -> RetrievalScores | None:
        """Scores for new photos: grouped where there are groups."""
        return self.grouped if self.has_groups else self.ungrouped

    def to_json(self) -> dict[str, Any]:
        """Ungrouped scores, with the others under `grouped` and `against_training`."""
        return {
            **self.ungrouped.to_json(),
            "grouped": None if self.grouped is None else self.grouped.to_json(),
            "against_training": None if self.against is None else self.against.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Searches:
    """Searches of the validation images.

    `ungrouped` is against each other, whatever their `groups`. `against` has the training images, with features
    `training` (N, F), as a gallery, then the validation images `queries` (Q,) whose labels train; None where no label
    trains, or a benchmark defines the searches.
    """

    ungrouped: ValidationSet
    training: Floats
    groups: Groups | None = None
    queries: Ids | None = None
    against: ValidationSet | None = None

    def score(self, head: nn.Module) -> SearchScores:
        """Scores of a head."""
        embeddings = embed_features(head, self.ungrouped.features)
        grouped = against = None
        if self.groups is not None:
            grouped = _find(replace(self.ungrouped, groups=self.groups.numbers), embeddings)
        if self.against is not None:
            rows = np.concatenate([embed_features(head, self.training), embeddings[self.queries]])
            against = _find(self.against, rows)
        return SearchScores(self.ungrouped.score(embeddings), grouped, against, has_groups=self.groups is not None)


def _find(searched: ValidationSet, embeddings: Floats) -> RetrievalScores | None:
    """None where the queries could only find images of their own group."""
    try:
        return searched.score(embeddings)
    except InputError:
        return None


def plan_searches(validation: KnownImages, training: KnownImages) -> Searches:
    """Searches of validation images; of a benchmark, the searches that it defines."""
    ungrouped = validation.ungrouped
    if ungrouped.is_gallery is not None:
        return Searches(ungrouped, training.features)
    groups = find_groups(normalise_rows(validation.features), ungrouped.labels, validation.group_sources)
    queries = np.flatnonzero(np.isin(validation.labels, list(set(training.labels))))
    against = _search_training(validation, training, queries) if len(queries) else None
    return Searches(ungrouped, training.features, groups, queries, against)


def find_holdout_groups(training: KnownImages, *, copies: Ids) -> Ids | None:
    """(N,) int64, equal for training images of one group; None without groups.

    `copies` are (N,) int64, equal for near-duplicates, which are in one group.
    """
    group_sources = replace(training.group_sources, copies=copies)
    groups = find_groups(normalise_rows(training.features), training.numbers, group_sources)
    return None if groups is None else groups.shots


def _search_training(validation: KnownImages, training: KnownImages, queries: Ids) -> ValidationSet:
    """Training images as a gallery, then the queries, with their labels and groups.

    A query does not find its own bytes, nor its own group where a table, names or times define it, or else similarity,
    if queries without their group err far more often.
    """
    names, count = [*training.labels, *validation.labels], len(training.labels)
    labels = number_equal(names)
    first, second, hashes = training.group_sources, validation.group_sources, [*training.hashes, *validation.hashes]
    group_sources = GroupSources(
        [*first.names, *second.names],
        np.concatenate([first.times, second.times]),
        given=[*(first.given or ()), *(second.given or ())],
        copies=number_equal(hashes),
    )
    features = normalise_rows(np.concatenate([training.features, validation.features]))
    rows = np.concatenate([np.arange(count, dtype=np.int64), count + queries])
    is_gallery, none = np.arange(len(rows)) < count, np.empty((len(rows), 0), dtype=np.float32)

    def search_grouped(groups: Ids) -> ValidationSet:
        return ValidationSet(none, labels[rows], is_gallery, validation.ks, groups[rows])

    assert group_sources.copies is not None
    copies = search_grouped(group_sources.copies)
    sets = np.repeat([0, 1], [count, len(validation.labels)])
    groups = find_groups(features, labels, group_sources, sets=sets)
    if groups is None:
        return copies
    grouped = search_grouped(groups.numbers)
    if groups.is_certain:
        return grouped
    # Groups by similarity alone are uncertain: two sets from different days have groups each, but share none. They
    # are used only if leaving the group of a query out lowers recall much: then the sets share groups.
    found, found_grouped = (_find(replace(one, ks=(1,)), features[rows]) for one in (copies, grouped))
    if found is None or found_grouped is None:
        return copies
    return grouped if makes_a_difference(1 - found.recall[1], 1 - found_grouped.recall[1]) else copies
