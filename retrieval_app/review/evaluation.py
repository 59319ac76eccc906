"""How well a gallery finds the labels of some of its own members, chosen by a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from index.errors import InputError
from index.evaluate import ClassScore, Evaluation, evaluate_gallery
from index.filters import Filter
from index.gallery import Gallery
from index.metrics import UNLABELLED, bootstrap_interval, score_retrieval
from index.progress import Progress, no_progress

_SEED = 0  # of the resampling


def evaluate_members(
    gallery: Gallery, *, ks: Sequence[int], where: Filter | None = None, progress: Progress = no_progress
) -> dict[str, Any]:
    """The document of `retrieval evaluate --json`; with a filter only the members that it keeps ask, among all.

    Raises:
        InputError: a K below 1, the filter names metadata that no image has, or nobody is left who can ask.
    """
    if where is None:
        return evaluate_gallery(gallery, ks=ks, scoring=progress).to_json()
    with gallery.catalog() as catalog:
        kept = np.isin(gallery.ids, catalog.matching_ids(where))
    vectors, labels, ids, names = gallery.labelled_vectors()
    if not (kept & (labels != UNLABELLED)).any():
        raise InputError("the filter keeps no image that has a label, so there is nothing to evaluate")
    scores = score_retrieval(
        vectors[kept],
        labels[kept],
        gallery=vectors,
        gallery_labels=labels,
        gallery_ids=ids,
        query_ids=ids[kept],
        ks=sorted({1, *ks}),
        progress=progress,
    )
    queries, recall = Counter(scores.labels.tolist()), scores.per_class_recall(1)
    return Evaluation(
        scores=scores,
        recall_interval=bootstrap_interval(scores.hits[1], seed=_SEED),
        map_interval=bootstrap_interval(scores.average_precision, seed=_SEED),
        per_class={names[label]: ClassScore(queries[label], recall[label]) for label in recall},
        nmi=None,
        skipped=0,
    ).to_json()
