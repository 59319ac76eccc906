"""Clusters of a gallery's images by their vectors, written to the metadata column `cluster`."""

import math
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal, TypeAlias, Unpack

import numpy as np

from index.arrays import Labels, Vectors
from index.catalog.writer import CatalogWriter
from index.errors import InputError, MissingDependencyError
from index.gallery.gallery import Gallery
from index.text import printable_path
from index.vectors.clusters import cluster_embeddings
from index.writing.build_config import RunOptions
from index.writing.publish_change import BuildReport, change_gallery

ClusterMethod: TypeAlias = Literal["kmeans", "hdbscan"]
_MOST_USUAL = 256
_FEWEST = 5  # images of a cluster of HDBSCAN
_UNCLUSTERED = -1


def cluster_gallery(
    gallery: Path, *, method: ClusterMethod = "kmeans", count: int | None = None, **run: Unpack[RunOptions]
) -> tuple[BuildReport, dict[str, int]]:
    """Cluster the images of a gallery, and publish a version whose metadata column `cluster` has the names.

    Earlier clusters are replaced. Images that are added later have none until it is called again.

    Args:
        method: k-means of faiss, or HDBSCAN of scikit-learn, which finds the number itself and leaves images out.
        count: of k-means; None for the square root of half the images, 2 to 256.

    Returns:
        The report, and the number of images of each cluster, the largest first.

    Raises:
        InputError: the images have metadata `cluster` of their own, or there are too few images.
        MissingDependencyError: HDBSCAN without scikit-learn.
    """
    if count is not None and method != "kmeans":
        raise InputError(f"--count is for kmeans; {method} finds the number of clusters itself")
    sizes: dict[str, int] = {}

    def change(catalog: CatalogWriter) -> None:
        opened = Gallery.open(gallery)
        if opened.count < 2:
            raise InputError(f"{printable_path(opened.name)}: {opened.count} images cannot be clustered; add images")
        with opened.catalog() as reading:
            labels = {row.id: row.label for row in reading.rows(status="indexed")}
        clusters = _assign(opened.vectors(opened.ids), method=method, count=count)
        names = name_clusters(clusters, [labels[number] for number in opened.ids.tolist()])
        chosen = [names.get(cluster) for cluster in clusters.tolist()]
        sizes.update(Counter(name for name in chosen if name is not None).most_common())
        catalog.set_clusters(zip(opened.ids.tolist(), chosen, strict=True), gallery=printable_path(opened.name))

    return change_gallery(gallery, change, **run), sizes


def _assign(vectors: Vectors, *, method: ClusterMethod, count: int | None) -> Labels:
    """(N,) int64 cluster of each of (N, D) float32 rows, -1 for none."""
    if method == "kmeans":
        usual = min(max(2, round(math.sqrt(len(vectors) / 2))), _MOST_USUAL)
        return cluster_embeddings(vectors, clusters=usual if count is None else count, seed=0)
    try:
        library = import_module("sklearn.cluster")
    except ImportError as error:
        raise MissingDependencyError(package="scikit-learn", extra="benchmarks", purpose="HDBSCAN") from error
    found = library.HDBSCAN(min_cluster_size=min(_FEWEST, len(vectors)), copy=False).fit_predict(vectors)
    return np.where(found < 0, _UNCLUSTERED, found).astype(np.int64)


def name_clusters(clusters: Labels, labels: Sequence[str | None]) -> dict[int, str]:
    """The name of each of (N,) clusters: its most frequent label, numbered from the second on, or `cluster 7`.

    >>> name_clusters(np.array([0, 0, 1, 2, -1]), ["hat", "hat", "hat", None, None])
    {0: 'hat', 1: 'hat 2', 2: 'cluster 3'}
    """
    counts: dict[int, Counter[str]] = {}
    sizes = Counter(cluster for cluster in clusters.tolist() if cluster != _UNCLUSTERED)
    for cluster, label in zip(clusters.tolist(), labels, strict=True):
        if label is not None and cluster != _UNCLUSTERED:
            counts.setdefault(cluster, Counter())[label] += 1
    names: dict[int, str] = {}
    taken = {label for label in labels if label is not None}
    used: Counter[str] = Counter()
    for place, cluster in enumerate(sorted(sizes, key=lambda one: (-sizes[one], one)), start=1):
        if cluster not in counts:
            names[cluster] = f"cluster {place}"
            continue
        label = min(counts[cluster], key=lambda one: (-counts[cluster][one], one))
        used[label] += 1
        name = label if used[label] == 1 else f"{label} {used[label]}"
        while used[label] > 1 and name in taken:  # a label is called so
            used[label] += 1
            name = f"{label} {used[label]}"
        names[cluster] = name
    return names
