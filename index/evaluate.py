"""Retrieval quality on labelled images: of a finished gallery, or of a model on a folder, all in memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.ahead import usable_cores
from index.embedder import Embedder, Vectors
from index.errors import InputError
from index.exact import Ids
from index.gallery import Gallery
from index.images import printable_path, walk_folder
from index.labels import folder_label
from index.metrics import UNLABELLED, Labels, RetrievalScores, score_retrieval
from index.pipeline import embed_files
from index.progress import Progress

logger = logging.getLogger(__name__)

_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class LabelledFolder:
    """The usable images of a folder: (N, D) float32 unit `vectors`, and their first folders as labels."""

    vectors: Vectors
    labels: list[str | None]
    skipped: int


def evaluate_gallery(gallery: Gallery, *, ks: Sequence[int], scoring: Progress | None = None) -> RetrievalScores:
    """Score a gallery on its own labels: every labelled member is a query and is removed from its own ranking.

    `scoring` is called with (done, total) queries.

    Raises:
        InputError: no query has a relevant item.
    """
    vectors, labels, ids, _ = gallery.labelled_vectors()
    return _score_members(vectors, labels, ids=ids, ks=ks, scoring=scoring)


def evaluate_queries(
    gallery: Gallery,
    *,
    query: Path,
    ks: Sequence[int],
    progress: Progress | None = None,
    scoring: Progress | None = None,
) -> tuple[RetrievalScores, int]:
    """Score a gallery on the images of a folder, labelled by their first folders; nothing is removed.

    Args:
        gallery: what is searched.
        query: the images that ask.
        ks: the K of Recall@K.
        progress: called with (done, total) files that are embedded.
        scoring: called with (done, total) queries.

    Returns:
        The scores, and the number of files that could not be used.

    Raises:
        InputError: the folder has no usable image, or no query has a relevant item.
    """
    vectors, labels, ids, names = gallery.labelled_vectors()
    queries = embed_folder(query, embedder=gallery.embedder, progress=progress)
    scores = score_retrieval(
        queries.vectors,
        _number(queries.labels, names),
        gallery=vectors,
        gallery_labels=labels,
        gallery_ids=ids,
        ks=ks,
        progress=scoring,
    )
    return scores, queries.skipped


def evaluate_model(
    model_path: Path,
    *,
    data: Path,
    query: Path | None = None,
    ks: Sequence[int],
    progress: Progress | None = None,
    scoring: Progress | None = None,
) -> tuple[RetrievalScores, int]:
    """Score a model on a folder of labelled images, and count the files that could not be used.

    Without `query` every image of `data` is a query and is removed from its own ranking. With it, the images of
    `query` are the queries, and nothing is removed. Labels are the first folders. `progress` and `scoring` as in
    `evaluate_queries`.

    Raises:
        InputError: a folder has no usable image, or no query has a relevant item.
        ModelFileError: the model cannot be used.
    """
    embedder = Embedder(model_path)
    members = embed_folder(data, embedder=embedder, progress=progress)
    ids = np.arange(len(members.vectors), dtype=np.int64)
    names = sorted({label for label in members.labels if label is not None})
    labels = _number(members.labels, names)
    if query is None:
        return _score_members(members.vectors, labels, ids=ids, ks=ks, scoring=scoring), members.skipped
    queries = embed_folder(query, embedder=embedder, progress=progress)
    scores = score_retrieval(
        queries.vectors,
        _number(queries.labels, names),
        gallery=members.vectors,
        gallery_labels=labels,
        gallery_ids=ids,
        ks=ks,
        progress=scoring,
    )
    return scores, members.skipped + queries.skipped


def _score_members(
    vectors: Vectors, labels: Labels, *, ids: Ids, ks: Sequence[int], scoring: Progress | None
) -> RetrievalScores:
    return score_retrieval(
        vectors,
        labels,
        gallery=vectors,
        gallery_labels=labels,
        gallery_ids=ids,
        query_ids=ids,
        ks=ks,
        progress=scoring,
    )


def embed_folder(folder: Path, *, embedder: Embedder, progress: Progress | None = None) -> LabelledFolder:
    """Embed every usable image of a folder; the others are counted and named in the log by reason.

    Raises:
        InputError: no image is usable.
    """
    found = list(walk_folder(folder))
    paths = {number: file.relative_path for number, file in enumerate(found) if file.problem is None}
    skipped = Counter(file.problem.reason for file in found if file.problem is not None)
    vectors: list[Vectors] = []
    labels: list[str | None] = []
    done = 0
    for batch in embed_files(
        ((number, folder / path) for number, path in paths.items()),
        embedder,
        batch_size=_BATCH_SIZE,
        workers=usable_cores(),
    ):
        for file in batch:
            if file.vector is not None:
                vectors.append(file.vector)
                labels.append(folder_label(paths[file.id]))
            elif file.problem is not None:
                skipped[file.problem.reason] += 1
        done += len(batch)
        if progress is not None:
            progress(done, len(paths))
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    if not vectors:
        shown = printable_path(str(folder))
        raise InputError(f"{shown}: no usable image in the folder: {reasons or 'it has no files'}")
    if skipped:
        logger.warning("%s: skipped %d of %d files: %s", folder, skipped.total(), len(found), reasons)
    return LabelledFolder(np.stack(vectors), labels, skipped.total())


def _number(labels: Sequence[str | None], names: Sequence[str]) -> Labels:
    """(N,) int64 positions in the names; labels that are no name get numbers above, so that they count as lone."""
    number = {name: position for position, name in enumerate(names)}
    positions = [UNLABELLED if label is None else number.setdefault(label, len(number)) for label in labels]
    return np.array(positions, dtype=np.int64)
