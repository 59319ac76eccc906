"""Building a gallery on a Ray cluster: each task embeds a shard, as `index build --shard` does, and a merge follows.

Where a worker or its node dies, Ray gives the shard to another node, which continues after its last checkpoint.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from index.durable import is_temporary, make_temporary
from index.errors import GalleryError, InputError, RetrievalError, missing_imports_as_dependency_errors
from index.progress import Progress, no_progress, no_steps
from index.sources.registry import find_source
from index.telemetry import switch_off_telemetry
from index.text import printable_path
from index.writing.build_config import BuildConfig, RunOptions
from index.writing.publishing import BuildReport
from index.writing.shard_plan import Shard, list_counts
from index.writing.sharding import ShardReport, SharedWork, embed_shard, join_shards, merge_shards, open_listing
from index.writing.workspace import disk_errors_as_gallery_errors

_ANSWER_S = 10.0  # to connect to the cluster's head; Ray itself would try for many minutes
_LOOK_S = 1.0  # between two checks of living nodes
_NO_NODE_S = 60.0  # without any living node, after which the build fails
_VISIBLE_S = 60.0  # until a folder written by a node is visible here, on a network file system
_SHARDS_EACH = 2  # for every worker, so that a dead worker's rest is shared
_MOST_DEATHS = 3  # of workers on one shard


def build_on_cluster(work: SharedWork, *, address: str | None = None, **run: Unpack[RunOptions]) -> BuildReport:
    """Embed missing shards on a cluster, and merge all; the sources are scanned once, into a file for every node."""
    start = time.perf_counter()
    progress, scanning = run.pop("progress", no_progress), run.get("begin_step", no_steps)("Scanning")
    with connected(address) as ray, disk_errors_as_gallery_errors(work.gallery):
        for path in work.folder.iterdir():  # listings of builds that were killed
            if is_temporary(path.name.removesuffix("-journal")):
                path.unlink(missing_ok=True)
        listing = make_temporary(work.folder.resolve())
        try:
            with open_listing(work, progress=scanning) as catalog:
                catalog.write_finished(listing, compact=False)
            _embed_shards(ray, work, listing, progress=progress)
        finally:
            listing.unlink(missing_ok=True)
    report = merge_shards(work.gallery, **run)
    seconds = time.perf_counter() - start
    return replace(report, seconds=seconds, images_per_second=report.new_images / seconds)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The ray module, connected to the cluster at HOST:PORT; None: that of `RAY_ADDRESS`, or a local one."""
    address, ray = find_cluster(address)
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            include_dashboard=None if address else False,
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{address or 'a Ray cluster of this machine'}: cannot be used: {problem}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def find_cluster(address: str | None) -> tuple[str | None, Any]:
    """The checked address of the cluster, and the ray module; see `connected`."""
    switch_off_telemetry()
    address = address or os.environ.get("RAY_ADDRESS") or None  # which Ray takes for none where it is empty, too
    if address is not None:
        host, separator, port = address.rpartition(":")
        if not separator or "/" in host or not port.isdigit():
            raise InputError(f"{address}: expected the address of a Ray cluster's head as HOST:PORT, such as head:6379")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
        except (OSError, OverflowError) as error:
            advice = f"start one there with `ray start --head --port {port}`, or give the address of another"
            raise InputError(f"{address}: no Ray cluster answers there ({error}); {advice}") from error
    with missing_imports_as_dependency_errors("--engine ray"):
        import ray
    return address, ray


def _embed_shards(ray: Any, work: SharedWork, listing: Path, *, progress: Progress) -> None:
    """Embed every shard in a task; the split of a stopped build is kept."""
    workers, needs = _plan_workers(ray, threads=work.config.workers)
    counts = list_counts(work.folder)
    count = counts[0] if len(counts) == 1 else max(1, _SHARDS_EACH * workers)
    config = replace(work.config, workers=int(needs["num_cpus"]))
    task = ray.remote(embed_sent).options(max_retries=_MOST_DEATHS, scheduling_strategy="SPREAD", **needs)
    shards = [Shard(number, count) for number in range(1, count + 1)]
    waiting = {task.remote(work.gallery, listing, config, shard): shard for shard in shards}
    done, lived = 0, time.monotonic()
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK_S)
        for ref in ready:
            report = _take(ray, ref, shard=waiting.pop(ref), folder=work.folder)
            _await_visible(Path(report.folder))
            done += report.images
            progress(done, round(done * count / (count - len(waiting))))  # shards are as large as each other
        if _list_nodes(ray):
            lived = time.monotonic()
        elif time.monotonic() - lived > _NO_NODE_S:
            raise GalleryError(
                work.folder, "no node of the cluster is left to embed; what is done is kept, run it again"
            )


def _list_nodes(ray: Any) -> list[Mapping[str, float]]:
    """The resources of living nodes with processors."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def _plan_workers(ray: Any, *, threads: int) -> tuple[int, dict[str, float]]:
    """The number of concurrent tasks, and the resources of each: a GPU where all nodes have one, else processors."""
    begun = time.monotonic()
    while not (nodes := _list_nodes(ray)):
        if time.monotonic() - begun > _NO_NODE_S:
            raise GalleryError("the Ray cluster", "no node has a processor to embed with")
        time.sleep(_LOOK_S)
    if all(node.get("GPU", 0) >= 1 for node in nodes):
        least = min(int(node["CPU"]) // int(node["GPU"]) for node in nodes)
        each = max(1, min(threads or least, least))
        return sum(int(node["GPU"]) for node in nodes), {"num_gpus": 1, "num_cpus": each}
    least = min(int(node["CPU"]) for node in nodes)
    each = min(threads or least, least)
    return sum(int(node["CPU"]) // each for node in nodes), {"num_cpus": each}


def _take(ray: Any, ref: Any, *, shard: Shard, folder: Path) -> ShardReport:
    try:
        result = ray.get(ref)
    except ray.exceptions.RayError as error:
        problem = " ".join(str(getattr(error, "cause", None) or error).split())[:300]
        raise GalleryError(
            "the Ray cluster",
            f"{shard} ({printable_path(str(folder / shard.folder))}) failed: {problem}; what is done is kept; if its "
            f"workers died {1 + _MOST_DEATHS} times, take out the images that kill them, or give workers more memory",
        ) from error
    if isinstance(result, RetrievalError):
        raise GalleryError("a node of the cluster", str(result)) from result
    report: ShardReport = result
    return report


def _await_visible(folder: Path) -> None:
    """Wait until a shard that a node has written is visible here."""
    until = time.monotonic() + _VISIBLE_S
    while not folder.is_dir():
        if time.monotonic() > until:
            raise GalleryError(folder, "not visible here after a node wrote it; give an --out that all machines share")
        time.sleep(0.1)
        os.listdir(folder.parent)


def embed_sent(gallery: Path, listing: Path, config: BuildConfig, shard: Shard) -> ShardReport | RetrievalError:
    """Embed a shard on a node, as `index build --shard` does. Expected errors are returned, and end the build."""
    try:
        if not listing.is_file():
            shown = printable_path(listing.parent)
            raise GalleryError(shown, "not visible on a node; give an --out that all machines share")
        work = join_shards(gallery, config)
        sources = [find_source(location) for location in work.plan.sources]
        report = embed_shard(work, shard, listing=listing)
        for source in sources if report.skipped else ():
            if not source.is_there():  # the cause may be a lost disk
                problem = "not visible on a node any more; every machine needs it at this path"
                raise InputError(problem, at=source.location)
    except RetrievalError as error:
        return error
    return report
