"""Copy, tune and cluster: new versions or galleries of the same vectors; nothing is embedded."""

import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from index.arrays import Labels
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.limits import WRITER_WAIT_S
from index.markers import read_mark
from index.model.embedder import Embedder
from index.progress import no_steps
from index.text import printable_path
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.vectors.clusters import cluster_embeddings
from index.vectors.stores import hold_vectors
from index.versions.annotations import added_folder
from index.versions.gallery_identity import FolderState, lock_gallery, recognise
from index.versions.gallery_parts import make_mark
from index.versions.manifest import CATALOG_NAME, MODEL_NAME, Manifest, check_file
from index.versions.versions import holding_current, read_current
from index.writing.build_config import RunOptions
from index.writing.pending import embed_pending
from index.writing.publishing import BuildReport, publish
from index.writing.workspace import Workspace, disk_errors_as_gallery_errors, open_workspace

_MOST_USUAL = 256  # clusters


def copy_gallery(
    source: Path, out: Path, *, store: StoreConfig | None = None, **run: Unpack[RunOptions]
) -> BuildReport:
    """Copy the current version, with ids and uploads but without label decisions; a stopped copy starts again."""
    start, store = time.perf_counter(), store or StoreConfig()
    wait_s, begin_step = run.get("wait_s", WRITER_WAIT_S), run.get("begin_step", no_steps)
    with (
        holding_current(source) as version,
        disk_errors_as_gallery_errors(out, advice="remove the cause and run the command again"),
    ):
        manifest = Manifest.read(version)
        for name in manifest.files:
            check_file(version.folder, name, manifest, contents=True)
        if out.exists() and not out.is_dir():
            raise InputError("expected a folder for the copy, found a file; give another", at=out)
        is_stopped = read_mark(out) is not None and read_current(out) is None
        if out.exists() and not is_stopped and recognise(out) is not FolderState.VACANT:
            raise InputError("the folder has something in it; give a new or empty one for the copy", at=out)
        embedder = Embedder(version.folder / MODEL_NAME, runs=False)
        out.mkdir(parents=True, exist_ok=True)
        make_mark(out)
        with lock_gallery(out, wait_s=wait_s, begin_step=begin_step):
            work = Workspace(out.resolve(), embedder=embedder, start=start, **run)
            work.remove()  # a copy that was stopped may be of another gallery
            if (sent := added_folder(source)).is_dir():
                shutil.copytree(sent, added_folder(out), dirs_exist_ok=True)
            work.open_without_base(
                None,
                rows=version.folder / CATALOG_NAME,
                kept={output: hold_vectors(version, output) for output in manifest.outputs},
                runtime=manifest.runtime,
            )
            with work.opened():
                with work.change() as catalog:
                    catalog.set({STORE_SETTING: None if store == StoreConfig() else store.to_text()})
                embed_pending(work)
                return publish(work)


def tune_gallery(gallery: Path, *, changes: Mapping[str, Any] | None = None, **run: Unpack[RunOptions]) -> BuildReport:
    """Rewrite the current version: one ANN index over all members, by changed options, without deleted vectors."""
    with open_workspace(gallery, **run) as work:
        with work.change() as catalog:
            config = replace(AnnConfig.from_text(catalog.setting(INDEX_SETTING)), **(changes or {}))
            catalog.set({INDEX_SETTING: config.to_text()})
        embed_pending(work)
        return publish(work, rewrite=True)


def cluster_gallery(
    gallery: Path, *, count: int | None = None, **run: Unpack[RunOptions]
) -> tuple[BuildReport, dict[str, int]]:
    """Cluster the images of a gallery by k-means, and publish a version whose metadata column `cluster` has the names.

    `count` is the square root of half the images, 2 to 256, where it is None. The second value is the number of images
    of each cluster, the largest first.
    """
    begin_step = run.get("begin_step", no_steps)
    with open_workspace(gallery, **run) as work:
        with work.change() as catalog:
            opened = Gallery.open(gallery)
            if opened.count < 2:
                raise InputError(f"{opened.count} images cannot be clustered; add images", at=opened.name)
            with opened.catalog() as reading:
                labels = {row.id: row.label for row in reading.rows(status="indexed")}
            usual = min(max(2, round(math.sqrt(opened.count / 2))), _MOST_USUAL)
            clusters = cluster_embeddings(
                opened.vectors(opened.ids),
                clusters=usual if count is None else count,
                seed=0,
                progress=begin_step("Clustering"),
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
