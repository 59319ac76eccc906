"""Building a gallery with a Ray cluster: its machines embed what no shard has yet, then the merge makes the gallery."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from index.embedding.cluster import Crew, connected
from index.embedding.cluster_worker import ClusterWork
from index.limits import LOCK_WAIT_S
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.versions.manifest import MODEL_NAME
from index.writing.listing import open_listing
from index.writing.publish_change import BuildReport
from index.writing.shard_plan import share_plan
from index.writing.sharding import SharedWork, merge_shards, missing_items, naming_trouble

_FOLDER = "cluster"


def build_on_cluster(
    work: SharedWork,
    *,
    address: str | None = None,
    shards: Path | None = None,
    progress: Progress = no_progress,
    begin_step: BeginStep = no_steps,
    wait_s: float = LOCK_WAIT_S,
) -> BuildReport:
    """Embed on a cluster what no shard of the work has, and merge.

    Args:
        address: of the cluster's head; see `connected`.
        shards: as they were given to `open_shards`.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: no cluster answers, or a source cannot be scanned.
        GalleryError: a node cannot see the sources or the shards, none is left, or as `merge_shards`; what is done is
            kept.
    """
    start = time.perf_counter()
    config, folder = work.config, work.folder.resolve() / _FOLDER
    told = ClusterWork(
        folder, folder.parent / MODEL_NAME, work.embedder.sha256, tuple(work.sources), config.batch_size,
        config.max_pixels, work.embedder.backend,
    )  # fmt: skip
    with (
        naming_trouble(work.gallery),
        connected(address) as ray,
        open_listing(work.gallery, work.sources, labels=work.labels, progress=begin_step("Scanning")) as listing,
    ):
        folder.mkdir(exist_ok=True)
        crew = Crew(ray, told, threads=config.workers)
        plan = replace(work.plan, vectors=dict(crew.describe()))
        share_plan(work.folder, plan)
        planned = replace(work, plan=plan)
        crew.embed(
            missing_items(planned, listing),
            made_by=plan.made_by,
            unit=config.checkpoint_images,
            total=sum(1 for _ in missing_items(planned, listing)),
            progress=progress,
        )
    report = merge_shards(work.gallery, shards=shards, begin_step=begin_step, wait_s=wait_s)
    seconds = time.perf_counter() - start
    return replace(report, seconds=seconds, images_per_second=report.new_images / seconds)
