"""Upgrade of a gallery to another model: the version in use answers while its images are embedded anew.

The vectors are gathered in GALLERY/upgrade/, without the gallery's lock, so that other commands write meanwhile. A
version with the same rows and ids is published at the end.
"""

import sys
import time
from collections.abc import Collection, Container, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Unpack

from index.catalog.reader import Catalog, read_catalog
from index.duplicates.duplicate_config import LIMITS_SETTING
from index.embedding.cached import CachedEngine, open_cached_engine
from index.errors import GalleryError
from index.faiss_library import import_faiss
from index.gallery.computed_by import usual_runtime_in
from index.items import Place
from index.limits import WRITER_WAIT_S
from index.model.embedder import Embedder
from index.model.text_encoder import read_text_files
from index.progress import no_progress, no_steps
from index.text import printable_path
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.vectors.stores import load_store
from index.versions.gallery_identity import FolderState, find_damage, lock_gallery, require_own_folder
from index.versions.gallery_parts import UPGRADE, identify, make_part, read_plan, remove_part
from index.versions.manifest import CATALOG_NAME, Manifest, check_file
from index.versions.versions import find_version, holding_current
from index.writing.build import require_sources
from index.writing.build_config import BuildConfig, RunOptions
from index.writing.pending import embed_pending
from index.writing.publishing import BuildReport, publish
from index.writing.workspace import Workspace, disk_errors_as_gallery_errors


def upgrade_gallery(gallery: Path, model_path: Path, **run: Unpack[RunOptions]) -> BuildReport | None:
    """Embed the images of a gallery with another model, and publish them as its next version under the same ids.

    Finished vectors survive a kill, and the same call continues. Images that were added meanwhile are taken in. None
    where the gallery has this model already.
    """
    start, gallery = time.perf_counter(), gallery.resolve()
    if require_own_folder(gallery) is FolderState.DAMAGED:
        raise find_damage(gallery)
    embedder = Embedder(model_path, threads=1, backend=usual_runtime_in(gallery))
    read_text_files(embedder.path, embedder.contract)
    if embedder.sha256 == Manifest.read(find_version(gallery)).model_sha256:
        remove_part(gallery / UPGRADE, of=identify(gallery))  # of an upgrade that was killed at its end
        return None
    wait_s, begin_step = run.get("wait_s", WRITER_WAIT_S), run.get("begin_step", no_steps)
    import_faiss()
    with disk_errors_as_gallery_errors(gallery):
        with lock_gallery(gallery, wait_s=wait_s, begin_step=begin_step):
            _check_unfinished(gallery)
            folder = make_part(gallery, UPGRADE)
        run["config"] = replace(run.get("config") or BuildConfig(), cache=folder)
        done = _embed_ahead(gallery, embedder, **run)
        with lock_gallery(gallery, wait_s=wait_s, begin_step=begin_step):
            _check_unfinished(gallery)
            report = _publish(gallery, embedder, done, start=start, **run)
            remove_part(folder, of=identify(gallery))
    return report


def _embed_ahead(gallery: Path, embedder: Embedder, **run: Unpack[RunOptions]) -> set[int]:
    """Ids of the images whose vectors are in the folder; those that others add meanwhile are embedded, too."""
    config, progress = run.get("config") or BuildConfig(), run.get("progress", no_progress)
    whole, tried = embedder.with_outputs(*embedder.contract.widths), dict[int, bool]()
    settings = {"workers": config.workers, "batch_size": config.batch_size, "max_pixels": config.max_pixels}
    with open_cached_engine(whole, cache=config.cache, cache_bytes=sys.maxsize, **settings) as engine:
        while True:
            known = len(tried)
            with holding_current(gallery) as version, read_catalog(version.folder / CATALOG_NAME) as catalog:
                _check_settings(catalog, embedder, gallery)
                total = catalog.count("indexed")
                for number, has_vector in _embed_rows(catalog, engine, tried):
                    tried[number] = has_vector
                    progress(len(tried), max(total, len(tried)))
            if not engine.has_cache:
                advice = "what is done is kept: remove the cause and run the same command again"
                raise GalleryError(config.cache or gallery, f"the vectors cannot be stored there; {advice}")
            if len(tried) == known:
                return {number for number, has_vector in tried.items() if has_vector}


def _embed_rows(catalog: Catalog, engine: CachedEngine, tried: Container[int]) -> Iterator[tuple[int, bool]]:
    """Ids of the indexed images that were not `tried`, and whether there is a vector of their indexed bytes now."""
    sources, expected = catalog.sources(), dict[int, str | None]()

    def list_places() -> Iterator[tuple[int, Place]]:
        for row in catalog.rows(status="indexed"):
            if row.id not in tried:
                expected[row.id] = row.sha256
                yield row.id, replace(sources[row.source].locate(row), sha256=row.sha256)

    with closing(engine.embed(list_places())) as batches:
        for item in chain.from_iterable(batches):
            yield item.id, expected.pop(item.id) == item.sha256 and item.vector is not None


def _publish(
    gallery: Path, embedder: Embedder, done: Collection[int], *, start: float, **run: Unpack[RunOptions]
) -> BuildReport:
    """Publish the next version, under the lock: only images that are not `done` are read and embedded now."""
    version = find_version(gallery)
    check_file(version.folder, CATALOG_NAME, Manifest.read(version), contents=True)
    work = Workspace(gallery, embedder=embedder, start=start, **run)
    work.previous = version.name
    work.open_without_base(version.name, rows=version.folder / CATALOG_NAME, kept={}, runtime=None)
    with work.opened():
        with work.change() as catalog:
            catalog.set({LIMITS_SETTING: None})  # thresholds that the former model's vectors gave
            sources = catalog.sources()
            others = [number for number in catalog.indexed_ids().tolist() if number not in done]
            for row in catalog.find(others).values():
                catalog.make_pending([row.id], confirm=sources[row.source].locate(row).is_there())
        embed_pending(work)
        work.counts["from_cache"] = 0  # this command has embedded them
        return publish(work, rewrite=True)


def _check_unfinished(gallery: Path) -> None:
    """Refuse to replace the work of a stopped command with the gallery's model."""
    plan, current = read_plan(gallery), find_version(gallery)
    if plan is not None and plan["model_sha256"] == Manifest.read(current).model_sha256:
        problem = "a stopped command is unfinished; run it again, or `retrieval index update`, and then this"
        raise GalleryError(printable_path(gallery), problem)


def _check_settings(catalog: Catalog, embedder: Embedder, gallery: Path) -> None:
    """Check, before anything is embedded, that the sources are there and the store can take the vectors."""
    require_sources(catalog.sources().values(), gallery)
    store = StoreConfig.from_text(catalog.setting(STORE_SETTING))
    config, count = AnnConfig.from_text(catalog.setting(INDEX_SETTING)), catalog.count("indexed")
    kind, width = load_store(store.store), embedder.contract.embedding_dim
    kind.check(store, base=None, count=count, width=width, config=config)
