"""Clusters of vectors by k-means."""

import numpy as np

from index.arrays import Floats, Labels
from index.errors import InputError
from index.faiss_library import import_faiss
from index.progress import Progress, no_progress

_ROUNDS = 20  # of k-means, as in the metric-learning literature


def cluster_embeddings(embeddings: Floats, *, clusters: int, seed: int, progress: Progress = no_progress) -> Labels:
    """(N,) int64 cluster, of at most `clusters`, of each (N, D) float32 row, by k-means; the same for the same seed."""
    if not len(embeddings) or clusters < 1:
        raise InputError(f"cannot make {clusters} clusters of {len(embeddings)} images")
    faiss = import_faiss()
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    means = faiss.Kmeans(
        rows.shape[1],
        min(clusters, len(rows)),
        niter=1,
        seed=seed,
        min_points_per_centroid=1,  # below it faiss prints a warning
        max_points_per_centroid=len(rows),  # above it faiss takes a sample
    )
    for done in range(_ROUNDS):
        means.train(rows, init_centroids=means.centroids)
        progress(done + 1, _ROUNDS)
    assigned: Labels = means.assign(rows)[1].astype(np.int64)
    return assigned
