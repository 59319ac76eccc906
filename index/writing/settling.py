"""Settling the rows after a scan: hash changed items, embed new ones, set duplicates aside."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, fields
from functools import partial
from itertools import groupby, islice
from operator import itemgetter

import numpy as np

from index.arrays import Ids
from index.catalog.reader import read_catalog
from index.catalog.rows import CatalogRow
from index.catalog.writer import CatalogWriter
from index.duplicates.duplicate_config import LIMITS_SETTING, DuplicateConfig
from index.duplicates.gallery_duplicates import settle_limits
from index.duplicates.near_duplicates import KeptImages
from index.embedding.cached import open_cached_engine
from index.embedding.engine import in_checkpoints
from index.errors import ImageError
from index.items import Place
from index.outputs import COPY, SEMANTIC
from index.progress import Progress, no_progress
from index.sources.reading import fetch_ahead, read_place
from index.sources.source import ImageSource
from index.threads import map_ahead, usable_cores
from index.vectors.shards import gather_rows
from index.vectors.stores import hold_vectors
from index.versions.manifest import CATALOG_NAME
from index.writing.build_config import BuildConfig
from index.writing.shard_plan import find_outcomes
from index.writing.workspace import Workspace

_HASHED_AHEAD = 64
_HASHED_AT_ONCE = 256
_COMPARED_ROWS = 4096


def settle(work: Workspace, catalog: CatalogWriter) -> dict[str, int]:
    """Settle every pending row, and remove vanished ones; counts as in `BuildReport`."""
    sources = catalog.sources()
    comparing, compared = work.begin_step("Comparing"), 0
    for hashed in _hash_rows(catalog.changed(), sources, config=work.config):
        catalog.confirm(hashed)
        compared += len(hashed)
        comparing(compared, 0)
    moved = 0
    for hashed in _hash_rows(catalog.moved_candidates(), sources, config=work.config):
        moved += catalog.confirm_moved(hashed)
        compared += len(hashed)
        comparing(compared, 0)
    vanished = catalog.drop_vanished()
    if work.kept_ids is not None:  # their duplicates stay, also where this is stopped
        catalog.make_pending(work.find_lost(catalog).tolist(), confirm=True)
    embedded, known = _embed_pending(work, catalog, sources)
    if work.kept_ids is not None and catalog.count_orphans():  # their images cannot be embedded any more
        with catalog.transaction():
            catalog.release_duplicates()
        more = _embed_pending(work, catalog, sources)
        embedded, known = embedded + more[0], known + more[1]
    while catalog.skip_matching():
        more = _embed_pending(work, catalog, sources)
        embedded, known = embedded + more[0], known + more[1]
    set_duplicates_aside(work, catalog, progress=work.begin_step("Finding duplicates"))
    return {"new_images": embedded, "from_cache": known, "moved": moved, "vanished": vanished}


def _hash_rows(
    rows: Iterable[CatalogRow], sources: Mapping[int, ImageSource], *, config: BuildConfig
) -> Iterator[list[tuple[CatalogRow, str | None]]]:
    """Blocks of rows with the SHA-256 of their current bytes; None where they cannot be read."""
    placed: dict[int, CatalogRow] = {}

    def places() -> Iterator[tuple[int, Place]]:
        for row in rows:
            placed[row.id] = row
            yield row.id, sources[row.source].locate(row)

    def read(item: tuple[int, Place]) -> tuple[CatalogRow, str | None]:
        row = placed.pop(item[0])
        try:
            return row, hashlib.sha256(read_place(item[1])).hexdigest()
        except ImageError:
            return row, None

    workers = config.workers or usable_cores()
    with (
        closing(fetch_ahead(places())) as fetched,
        closing(map_ahead(read, fetched, workers=workers, ahead=_HASHED_AHEAD)) as hashed,
    ):
        while some := list(islice(hashed, _HASHED_AT_ONCE)):
            yield some


def _embed_pending(work: Workspace, catalog: CatalogWriter, sources: Mapping[int, ImageSource]) -> tuple[int, int]:
    """Embed every pending item, a checkpoint at a time; the numbers of vectors, and of those from the cache."""
    config, total, made = work.config, catalog.count("pending"), 0
    if not total:
        return 0, 0
    with ExitStack() as stack:
        engine = None
        if work.shards is not None:
            batches = find_outcomes(catalog, work.shards, width=work.embedder.width)
        else:
            engine = stack.enter_context(
                open_cached_engine(
                    work.embedder,
                    cache=config.cache,
                    workers=config.workers,
                    batch_size=config.batch_size,
                    max_pixels=config.max_pixels,
                )
            )
            pending = catalog.rows(status="pending")
            batches = engine.embed((row.id, sources[row.source].locate(row)) for row in pending)
        stack.enter_context(closing(batches))
        for items in in_checkpoints(
            batches,
            images=config.checkpoint_images,
            seconds=config.checkpoint_seconds,
            progress=lambda done: work.progress(done, total),
        ):
            made += work.save_checkpoint(catalog, items)
        return made, 0 if engine is None else engine.found


def set_duplicates_aside(work: Workspace, catalog: CatalogWriter, *, progress: Progress = no_progress) -> None:
    """Mark near-duplicates among indexed rows, by the gallery's settings.

    Images that the base kept with the same settings, or that have duplicates, stay. Of new images the first labelled
    one is kept, or the first.
    """
    kind = catalog.setting("dedup")
    if kind is None:
        return
    ids, hashes, is_labelled = catalog.fingerprints()
    is_kept = np.isin(ids, np.concatenate([_kept_ids(work, catalog), np.array(catalog.kept_images(), np.int64)]))
    if is_kept.all():
        return
    order = [ids[is_kept], ids[~is_kept & is_labelled], ids[~is_kept & ~is_labelled]]
    if kind == "exact":
        catalog.set_duplicates(_exact_duplicates(catalog.repeated(), np.concatenate(order), kept=len(order[0])))
    else:
        catalog.set_duplicates(_near_duplicates(work, catalog, ids, hashes, order=order, progress=progress))


def _kept_ids(work: Workspace, catalog: CatalogWriter) -> Ids:
    """(n,) int64 ids of the base's images, where it has the same settings of duplicates."""
    if work.kept_ids is not None:
        return work.kept_ids
    if work.base is not None:
        with read_catalog(work.base.folder / CATALOG_NAME) as base:
            names = ("dedup", *(field.name for field in fields(DuplicateConfig)))
            if all(base.setting(name) == catalog.setting(name) for name in names):
                return np.array(base.indexed_ids(), dtype=np.int64)
    return np.empty(0, dtype=np.int64)


def _exact_duplicates(rows: Iterable[tuple[str, int]], order: Ids, *, kept: int) -> list[tuple[int, int]]:
    """(row, kept image) of rows with equal bytes, from rising (hash, id).

    The kept image is the first in the `order` of ids; the first `kept` of these are never duplicates.
    """
    rank = {number: place for place, number in enumerate(order.tolist())}
    pairs = []
    for _, group in groupby(rows, key=itemgetter(0)):
        ids = sorted((number for _, number in group), key=rank.__getitem__)
        pairs += [(number, ids[0]) for number in ids[1:] if rank[number] >= kept]
    return pairs


def _near_duplicates(
    work: Workspace, catalog: CatalogWriter, ids: Ids, hashes: Ids, *, order: Sequence[Ids], progress: Progress
) -> list[tuple[int, int]]:
    """(row, kept image) of near-duplicates of earlier images; the first array of the order is kept whole."""
    given = {field.name: json.loads(catalog.setting(field.name) or "null") for field in fields(DuplicateConfig)}
    contract = work.embedder.contract
    output = COPY if COPY in contract.widths else SEMANTIC
    files = [*hold_vectors(work.base, output), *work.vector_files(catalog)[output]]
    read = partial(gather_rows, files=files, embedding_dim=contract.widths[output])
    threshold = contract.copy_threshold if output == COPY else None
    config = settle_limits(DuplicateConfig(**given), copy_threshold=threshold, catalog=catalog, read=read)
    catalog.set({LIMITS_SETTING: json.dumps(asdict(config))})
    kept_images = KeptImages(read, config)
    kept, stream = order[0], np.concatenate(order[1:])
    kept_images.hold(kept, hashes[np.searchsorted(ids, kept)])
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(stream), _COMPARED_ROWS):
        some = stream[start : start + _COMPARED_ROWS]
        same = kept_images.assign(some, hashes[np.searchsorted(ids, some)])
        repeats = same != some
        pairs += zip(some[repeats].tolist(), same[repeats].tolist(), strict=True)
        progress(start + len(some), len(stream))
    return pairs
