"""Changes of a gallery: lock it, change the catalogue, settle, publish a version, report."""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Unpack

from index.catalog.writer import CatalogWriter, write_catalog
from index.errors import CancelledError, GalleryError, NoUsableImageError, RetrievalError
from index.faiss_library import import_faiss
from index.gallery.computed_by import usual_runtime_in
from index.limits import LOCK_WAIT_S
from index.model.embedder import Embedder
from index.progress import no_steps
from index.sources.local_source import TableSource
from index.text import printable_path
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.vectors.stores import Publication, load_store, store_of
from index.versions.gallery_identity import claim_gallery, lock_gallery, require_gallery
from index.versions.manifest import Manifest
from index.versions.versions import find_version, remove_old_versions
from index.writing.build_config import RunOptions
from index.writing.settling import settle
from index.writing.workspace import Workspace, find_model

logger = logging.getLogger(__name__)

_BEFORE = "before.sqlite"
_NAMED_LABELS = 5
_RIVALS = (("faiss-cpu", "faiss-gpu"), ("onnxruntime", "onnxruntime-gpu"))


@contextmanager
def undone_where_called_off(work: Workspace, *, undo: bool) -> Iterator[None]:
    """Restore the unfinished work where the block is cancelled, and with `undo` where it fails.

    The catalogue may be open only within the block.
    """
    before = None if work.is_new else _copy(work.catalog_path, work.folder / _BEFORE)
    try:
        yield
    except (RetrievalError, OSError) as error:
        if not (undo or isinstance(error, CancelledError)):
            raise
        if before is None:
            work.remove()
        elif before.exists():  # else the change has removed the work
            for end in ("-wal", "-shm"):
                Path(f"{work.catalog_path}{end}").unlink(missing_ok=True)
            before.replace(work.catalog_path)
        raise


def _copy(catalog: Path, target: Path) -> Path:
    part = target.with_name(target.name + ".tmp")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(catalog)) as source, closing(sqlite3.connect(part)) as copy:
        source.backup(copy)
    os.replace(part, target)
    return target


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The result of a change of a gallery.

    Attributes:
        changed: whether there is a new version.
        found: items of the version: the sum of `indexed`, `duplicate` and `skipped`.
        labels: `count`, `images` with one, and the `largest`; None where nothing changed.
        new_images: that got their vectors in this run, `from_cache` of them from the cache.
        moved: items found in another place.
        vanished: items not found any more.
        images_per_second: new images, by the seconds of the whole run.
    """

    gallery: str
    version: str
    changed: bool
    found: int
    indexed: int
    duplicate: int
    skipped: int
    skipped_by_reason: dict[str, int]
    labels: dict[str, Any] | None
    new_images: int
    from_cache: int
    moved: int
    vanished: int
    removed: int
    seconds: float
    images_per_second: float


@contextmanager
def open_workspace(
    gallery: Path, *, embedder: Embedder | None = None, start: float | None = None, **run: Unpack[RunOptions]
) -> Iterator[Workspace]:
    """Open the gallery's workspace under its lock; disk errors become GalleryErrors."""
    start = time.perf_counter() if start is None else start
    wait_s, begin_step = run.get("wait_s", LOCK_WAIT_S), run.get("begin_step", no_steps)
    import_faiss()
    _warn_of_rivals()
    require_gallery(gallery)
    with lock_gallery(gallery, wait_s=wait_s, begin_step=begin_step), naming_trouble(gallery):
        claim_gallery(gallery.resolve())
        if embedder is None:
            embedder = Embedder(find_model(gallery), threads=1, backend=usual_runtime_in(gallery))
        work = Workspace(gallery.resolve(), embedder=embedder, start=start, **run)
        work.open()
        yield work


@contextmanager
def naming_trouble(
    gallery: Path, *, advice: str = "what is done is kept; remove the cause and run the same command again"
) -> Iterator[None]:
    """Turn disk errors into GalleryErrors."""
    try:
        yield
    except OSError as error:
        raise GalleryError(printable_path(str(gallery)), f"{error}; {advice}") from error


Change = Callable[[CatalogWriter], int | None]


def change_gallery(
    gallery: Path,
    change: Change | None,
    *,
    how: Publication | None = None,
    undo: bool = False,
    **run: Unpack[RunOptions],
) -> BuildReport:
    """Open the workspace of a finished gallery, and `run_change`."""
    with open_workspace(gallery, **run) as work:
        return run_change(work, change, how=how, undo=undo)


def run_change(
    work: Workspace, change: Change | None, *, how: Publication | None = None, undo: bool = False
) -> BuildReport:
    """Change the catalogue in one transaction, settle pending rows, and publish a version where something changed.

    `change` may return the number of removed items. `how` forces a new version. After a failure the next command
    continues with what was embedded; after a cancellation, or with `undo`, nothing is kept. A failure after the
    publication is a warning.
    """
    removed = None
    with undone_where_called_off(work, undo=undo), write_catalog(work.catalog_path) as catalog:
        if change is not None:
            try:
                with catalog.transaction():
                    removed = change(catalog)
                    _check_store(work, catalog)
            except RetrievalError:
                if work.is_new:  # there is nothing to continue
                    work.remove()
                raise
        for move in catalog.moved_sources():
            logger.warning("%s", move)
        catalog.record_places()
        settled = settle(work, catalog)
        indexed, reasons = catalog.count("indexed"), catalog.skipped_by_reason()
        if not indexed:
            _refuse_empty(work, catalog, reasons)
        previous = work.base
        counts = {"indexed": indexed, "duplicate": catalog.count("duplicate"), "skipped": sum(reasons.values())}
        changed = how is not None or work.has_changed(catalog)
        if changed or previous is None:
            writing = work.begin_step("Writing")
            writing(0, 0)
            work.write(catalog, how=how or Publication())
            writing(1, 1)  # the last moment to cancel
            version = work.publish().name
            labels = catalog.indexed_labels(limit=_NAMED_LABELS)
        else:
            version, labels = previous.name, None
    _clean_up(work, version=version, previous=previous.name if previous and changed else work.previous)
    seconds = time.perf_counter() - work.start
    return BuildReport(
        gallery=str(work.gallery),
        version=version,
        changed=changed,
        found=sum(counts.values()),
        **counts,
        skipped_by_reason=reasons,
        labels=labels,
        **settled,
        removed=removed or 0,
        seconds=seconds,
        images_per_second=settled["new_images"] / seconds,
    )


def _clean_up(work: Workspace, *, version: str, previous: str | None) -> None:
    """Remove old versions and finished work; what cannot be removed is left to the next writer."""
    try:
        work.remove()
        remove_old_versions(work.gallery, current=version, previous=previous)
        manifest = Manifest.read(find_version(work.gallery))
        store_of(manifest).tidy(work.gallery, manifest)
    except (OSError, GalleryError) as error:
        shown = printable_path(str(work.gallery))
        logger.warning("%s: version %s is in use, but what is left over stays: %s", shown, version, error)


def _check_store(work: Workspace, catalog: CatalogWriter) -> None:
    """Check, before anything is embedded, that the vectors can be written."""
    count, width = catalog.count("indexed") + catalog.count("pending"), work.embedder.contract.embedding_dim
    config = AnnConfig.from_text(catalog.setting(INDEX_SETTING))
    store = StoreConfig.from_text(catalog.setting(STORE_SETTING))
    load_store(store.store).check(store, base=work.base, count=count, width=width, config=config)


def _refuse_empty(work: Workspace, catalog: CatalogWriter, reasons: Mapping[str, int]) -> None:
    found = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()) or "there are no files"
    first, named = next(iter(catalog.rows(status="skipped")), None), ""
    if first is not None:
        named = f"; the first is {printable_path(first.path)}: {first.detail}"
        if isinstance(catalog.sources()[first.source], TableSource):
            named += "; a table's paths are relative to its folder, or absolute; addresses to fetch are in a column url"
    work.remove()
    shown = printable_path(str(work.gallery))
    raise NoUsableImageError(f"{shown}: no usable image in its sources: {found}{named}")


def _warn_of_rivals() -> None:
    """Warn where two packages that overwrite each other's files are both installed."""
    for names in _RIVALS:
        with suppress(PackageNotFoundError):
            for name in names:
                distribution(name)
            logger.warning("both %s and %s are installed; uninstall both, then install one of them", *names)
