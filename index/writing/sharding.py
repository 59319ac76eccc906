"""Building a gallery on many machines: each embeds a shard of the items, and a merge makes the gallery."""

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from index.catalog.reader import Catalog, read_catalog
from index.catalog.scans import record_scan
from index.catalog.writer import CatalogWriter, write_catalog
from index.duplicates.duplicate_config import DuplicateConfig
from index.durable import create_durably, hash_file
from index.embedding.cached import describe_vectors
from index.embedding.engine import ThreadedEngine, in_checkpoints
from index.errors import GalleryError
from index.gallery.computed_by import usual_runtime_in
from index.items import Place
from index.markers import is_part
from index.model.embedder import Embedder
from index.model.text_encoder import copy_text_files, read_text_files
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.sources.registry import find_source
from index.text import printable_path
from index.versions.gallery_parts import SHARDS, identify, remove_part
from index.versions.manifest import CATALOG_NAME, MODEL_NAME, Manifest
from index.versions.versions import read_current
from index.writing.build import build_gallery, check_out, check_same_sources, choose_model, make_gallery_folder
from index.writing.build_config import BuildConfig, RunOptions
from index.writing.publishing import BuildReport
from index.writing.scanning import AssignedLabels, scan_sources
from index.writing.shard_plan import (
    Shard,
    ShardPlan,
    key_item,
    make_shards_folder,
    read_done,
    read_shard_plan,
    share_plan,
    write_outcomes,
)
from index.writing.workspace import disk_errors_as_gallery_errors, require_model

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """A shard's result: `images` in all, `skipped` unusable ones, and `new_images` of this run."""

    folder: str
    shard: int
    count: int
    images: int
    skipped: int
    new_images: int
    seconds: float
    images_per_second: float


@dataclass(frozen=True, slots=True)
class SharedWork:
    """The common state of processes that make shards: model, plan and folders."""

    gallery: Path
    embedder: Embedder
    plan: ShardPlan
    config: BuildConfig

    @property
    def folder(self) -> Path:
        return self.gallery / SHARDS


@contextmanager
def open_listing(work: SharedWork, *, progress: Progress = no_progress) -> Iterator[CatalogWriter]:
    """A temporary catalogue after a scan: its pending rows are the items to embed, in one order on every machine."""
    labels = None if work.plan.labels is None else AssignedLabels(Path(work.plan.labels))
    with TemporaryDirectory(prefix="retrieval-listing-") as folder:
        path = Path(folder, CATALOG_NAME)
        current = read_current(work.gallery) if work.gallery.is_dir() else None
        if current is not None:
            shutil.copyfile(current.folder / CATALOG_NAME, path)
        with write_catalog(path) as catalog:
            catalog.prepare()
            numbers = catalog.add_sources(map(find_source, work.plan.sources))
            found = scan_sources(catalog, numbers, labels=labels, progress=progress)
            record_scan(catalog, found, scanned=numbers)
            if labels is not None:
                labels.check_used()
            total = max(catalog.count("pending"), 1)
            progress(total, total)
            yield catalog


def open_shards(
    *,
    model_path: Path | None,
    sources: Sequence[str | Path],
    out: Path,
    labels_file: Path | None = None,
    dedup: str = "off",
    duplicates: DuplicateConfig | None = None,
    index: Mapping[str, Any] | None = None,
    config: BuildConfig | None = None,
) -> SharedWork:
    """Create the folder of shards with the model and the plan; the arguments are those of `build_gallery`."""
    given, config = [find_source(os.fspath(source)) for source in sources], config or BuildConfig()
    gallery = check_out(out, sources=given)
    embedder = Embedder(model_path or choose_model(gallery), threads=1, backend=usual_runtime_in(gallery))
    embedder = embedder.with_outputs(*embedder.contract.widths)
    read_text_files(embedder.path, embedder.contract)
    current = read_current(gallery) if gallery.is_dir() else None
    if current is not None:  # the merge would refuse them, after everything was embedded
        require_model(embedder, expected=Manifest.read(current).model_sha256, gallery=gallery)
        with read_catalog(current.folder / CATALOG_NAME) as catalog:
            check_same_sources(catalog, given, gallery=gallery)
    plan = ShardPlan(
        sources=[source.location for source in given],
        labels=None if labels_file is None else str(labels_file.absolute()),
        dedup=dedup,
        duplicates=asdict(duplicates or DuplicateConfig()),
        index=dict(index or {}),
        vectors=_describe_vectors(embedder, config),
    )
    with disk_errors_as_gallery_errors(gallery):
        make_gallery_folder(gallery, shown=out)
        folder = make_shards_folder(gallery)
        share_plan(folder, plan)
        if not (folder / MODEL_NAME).exists():
            copy_text_files(embedder.path, folder / MODEL_NAME, embedder.contract)  # first: all wait for the model
            create_durably(folder / MODEL_NAME, embedder.path.read_bytes())
    return SharedWork(gallery, embedder, plan, config)


def join_shards(gallery: Path, config: BuildConfig) -> SharedWork:
    """Open the model and the plan of a gallery's shards on another machine."""
    folder = gallery / SHARDS
    plan = read_shard_plan(folder)
    embedder = Embedder(folder / MODEL_NAME, threads=1, sha256=plan.model_sha256, backend=plan.backend)
    embedder = embedder.with_outputs(*embedder.contract.widths)
    plan = replace(plan, vectors=_describe_vectors(embedder, config))
    share_plan(folder, plan)
    return SharedWork(gallery, embedder, plan, config)


def _describe_vectors(embedder: Embedder, config: BuildConfig) -> dict[str, Any]:
    batch_size = config.batch_size or embedder.usual_batch
    return describe_vectors(embedder, batch_size=batch_size, max_pixels=config.max_pixels)


def embed_shard(
    work: SharedWork,
    shard: Shard,
    *,
    listing: Path | None = None,
    progress: Progress = no_progress,
    begin_step: BeginStep = no_steps,
) -> ShardReport:
    """Embed one shard, or its missing part; `listing` is the catalogue of another process's `open_listing`."""
    start, own, config = time.perf_counter(), work.folder / shard.folder, work.config
    with disk_errors_as_gallery_errors(work.gallery), ExitStack() as stack:
        opened = read_catalog(listing) if listing else open_listing(work, progress=begin_step("Scanning"))
        catalog: Catalog = stack.enter_context(opened)
        own.mkdir(exist_ok=True)
        done, keys = read_done(own, made_by=work.plan.made_by), dict[int, str]()
        sources, positions = catalog.sources(), shard.positions(catalog.count("pending"))
        before = len(done)

        def missing() -> Iterator[tuple[int, Place]]:
            for row in islice(catalog.rows(status="pending"), positions.start, positions.stop):
                key = key_item(sources[row.source].location, row)
                if key not in done:
                    keys[row.id] = key
                    yield row.id, sources[row.source].locate(row)

        engine = ThreadedEngine(
            work.embedder, workers=config.workers, batch_size=config.batch_size, max_pixels=config.max_pixels
        )
        batches = stack.enter_context(closing(engine.embed(missing())))
        for items in in_checkpoints(
            batches,
            images=config.checkpoint_images,
            seconds=config.checkpoint_seconds,
            progress=lambda count: progress(min(before + count, len(positions)), len(positions)),
        ):
            write_outcomes(own, {keys[item.id]: item for item in items}, made_by=work.plan.made_by)
            done |= {keys.pop(item.id): item.problem is None for item in items}
    made, seconds = len(done) - before, time.perf_counter() - start
    return ShardReport(
        folder=str(own),
        shard=shard.number,
        count=shard.count,
        images=len(positions),
        skipped=sum(not is_usable for is_usable in done.values()),
        new_images=made,
        seconds=seconds,
        images_per_second=made / seconds,
    )


def merge_shards(gallery: Path, **run: Unpack[RunOptions]) -> BuildReport:
    """Make the gallery of its shards, identical to that of a build on a single machine, and remove them."""
    folder = gallery / SHARDS
    plan, model = read_shard_plan(folder), folder / MODEL_NAME
    if not model.is_file() or hash_file(model) != plan.model_sha256:
        raise GalleryError(model, "missing, or not the model of these shards; put it back")
    report = build_gallery(
        model_path=model,
        sources=plan.sources,
        out=gallery,
        labels_file=None if plan.labels is None else Path(plan.labels),
        dedup=plan.dedup,
        duplicates=DuplicateConfig(**plan.duplicates),
        index=plan.index,
        shards=folder,
        backend=plan.backend,
        **run,
    )
    _remove_shards(gallery.resolve())
    return report


def _remove_shards(gallery: Path) -> None:
    try:
        identity = identify(gallery)
        if is_part(gallery / SHARDS, of=identity):
            remove_part(gallery / SHARDS, of=identity)
    except OSError as error:
        logger.warning("%s: its shards are merged, but stay: %s", printable_path(gallery), error)
