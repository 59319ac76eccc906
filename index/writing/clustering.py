"""Clusters of a gallery's images by their vectors, written to the metadata column `cluster`."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from index.arrays import Labels
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.text import printable_path
from index.vectors.clusters import cluster_embeddings
from index.writing.build_config import RunOptions
from index.writing.pending import embed_pending
from index.writing.publishing import BuildReport, publish
from index.writing.workspace import open_workspace

_MOST_USUAL = 256


def cluster_gallery(
    gallery: Path, *, count: int | None = None, **run: Unpack[RunOptions]
) -> tuple[BuildReport, dict[str, int]]:
    """Cluster the images of a gallery, and publish a version whose metadata column `cluster` has the names.

    Earlier clusters are replaced. Images that are added later have none until it is called again.

    Args:
        count: of k-means clusters; None for the square root of half the images, 2 to 256.

    Returns:
        The report, and the number of images of each cluster, the largest first.
    """
    with open_workspace(gallery, **run) as work:
        with work.change() as catalog:
            opened = Gallery.open(gallery)
            if opened.count < 2:
                raise InputError(
                    f"{printable_path(opened.name)}: {opened.count} images cannot be clustered; add images"
                )
            with opened.catalog() as reading:
                labels = {row.id: row.label for row in reading.rows(status="indexed")}
            usual = min(max(2, round(math.sqrt(opened.count / 2))), _MOST_USUAL)
            clusters = cluster_embeddings(
                opened.vectors(opened.ids), clusters=usual if count is None else count, seed=0
            )
            names = name_clusters(clusters, [labels[number] for number in opened.ids.tolist()])
            chosen = [names[cluster] for cluster in clusters.tolist()]
            catalog.set_clusters(zip(opened.ids.tolist(), chosen, strict=True), gallery=printable_path(opened.name))
        embed_pending(work)
        return publish(work), dict(Counter(chosen).most_common())


def name_clusters(clusters: Labels, labels: Sequence[str | None]) -> dict[int, str]:
    """The name of each of (N,) clusters: its most frequent label, numbered from the second on, or `cluster 7`.

    >>> name_clusters(np.array([0, 0, 1, 2]), ["hat", "hat", "hat", None])
    {0: 'hat', 1: 'hat 2', 2: 'cluster 3'}
    """
    counts: dict[int, Counter[str]] = {}
    sizes = Counter(clusters.tolist())
    for cluster, label in zip(clusters.tolist(), labels, strict=True):
        if label is not None:
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
