"""How well clusters of embeddings agree with their labels: normalised mutual information after k-means."""

from __future__ import annotations

import numpy as np

from index.arrays import UNLABELLED, Floats, Labels
from index.errors import InputError
from index.faiss_library import import_faiss

_ROUNDS = 20  # of k-means, as in the metric-learning literature


def nmi(embeddings: Floats, labels: Labels, *, seed: int) -> float:
    """NMI of the labels with as many k-means clusters as there are labels, in [0, 1].

    Args:
        embeddings: (N, D) float32 unit rows.
        labels: (N,) int64; rows that are `UNLABELLED` are left out.

    Raises:
        InputError: no row has a label.
        MissingDependencyError: faiss is not installed.
    """
    labelled = labels != UNLABELLED
    if not labelled.any():
        raise InputError(f"none of {len(labels)} images has a label; NMI needs class folders or a label file")
    known = labels[labelled]
    clusters = cluster_embeddings(embeddings[labelled], clusters=len(np.unique(known)), seed=seed)
    return normalised_mutual_information(known, clusters)


def cluster_embeddings(embeddings: Floats, *, clusters: int, seed: int) -> Labels:
    """(N,) int64 cluster of each (N, D) float32 row, by plain k-means on all rows; the same for the same seed.

    There are at most `clusters` of them, and never more than rows.

    Raises:
        InputError: there is no row, or fewer than one cluster is wanted.
        MissingDependencyError: faiss is not installed.
    """
    if not len(embeddings) or clusters < 1:
        raise InputError(f"cannot make {clusters} clusters of {len(embeddings)} images")
    faiss = import_faiss()
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    means = faiss.Kmeans(
        rows.shape[1],
        min(clusters, len(rows)),
        niter=_ROUNDS,
        seed=seed,
        min_points_per_centroid=1,  # below it faiss prints a warning
        max_points_per_centroid=len(rows),  # above it faiss takes a sample
    )
    means.train(rows)
    assigned: Labels = means.assign(rows)[1].astype(np.int64)
    return assigned


def normalised_mutual_information(labels: Labels, clusters: Labels) -> float:
    """Mutual information of two partitions over the mean of their entropies, in [0, 1].

    Two partitions of one part each agree: 1. Where only one of them has a single part, it says nothing: 0.

    Args:
        labels, clusters: (N,) int64, the two parts of each item; only equality counts.

    Raises:
        InputError: there is no item.
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
    mean_entropy = (_entropy(label_share) + _entropy(cluster_share)) / 2
    return min(1.0, max(0.0, information / mean_entropy))


def _entropy(shares: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return -float((shares * np.log(shares)).sum())
