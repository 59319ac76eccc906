"""Labels that should be split: their images are of two kinds that are no more alike than images of any labels."""

import numpy as np

from index.arrays import Floats, Ids, Labels, normalise_rows, rows_by_value
from index.labels.label_errors import Mask
from index.vectors.clusters import cluster_embeddings

# Chosen on photos of 17 kinds of clothes, 81 groceries and the 10 classes of CIFAR-10 (MobileNetV2, features of
# ImageNet): no class was split, and of 35 random pairs of classes that were given one label 22 were.
_LEAST_PART, _LEAST_SHARE = 5, 0.2  # images, and share of a label's, near-duplicates counted once
_MOST_COSINE = 0.0  # of the means of both parts, centred on all images
_NEARER_LABELS = 2  # other labels that are nearer to each part than the other part is


def find_split_classes(vectors: Floats, labels: Labels, groups: Ids, *, count: int) -> Mask:
    """(N,) whether an image is of the smaller part of a label that should be split.

    Args:
        vectors: (N, D) float32.
        labels: (N,) int64 in 0..count-1.
        groups: (N,) int64; near-duplicates have the same number.
    """
    found = np.zeros(len(labels), dtype=bool)
    rows = normalise_rows(vectors)
    rows = normalise_rows(rows - rows.mean(axis=0))
    members = {int(labels[own[0]]): own for own in rows_by_value(labels)}
    means = normalise_rows(
        np.stack([rows[members[n]].mean(axis=0) if n in members else np.zeros(rows.shape[1]) for n in range(count)])
    )
    for label, own in members.items():
        if len(own) < 2 * _LEAST_PART:
            continue
        second = cluster_embeddings(rows[own], clusters=2, seed=0) == 1
        parts = own[~second], own[second]
        sizes = [len(np.unique(groups[part])) for part in parts]
        if min(sizes) < max(_LEAST_PART, _LEAST_SHARE * sum(sizes)):
            continue
        one, other = normalise_rows(np.stack([rows[part].mean(axis=0) for part in parts]))
        cosine, others = float(one @ other), np.delete(means, label, axis=0)
        nearer = min(int((others @ part > cosine).sum()) for part in (one, other))
        if cosine <= _MOST_COSINE and nearer >= _NEARER_LABELS:
            found[parts[int(np.argmin(sizes))]] = True
    return found
