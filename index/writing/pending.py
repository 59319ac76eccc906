"""Pending rows after a scan: hash changed items, embed new ones, mark duplicates, read text."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from index.arrays import Ids
from index.catalog.described import UNREAD_ROWS, count_undescribed, end_pass, record_facts
from index.catalog.image_texts import apply_texts, count_unread, record_texts, unread_rows
from index.catalog.reader import read_catalog
from index.catalog.rows import TEXTS_SETTING, CatalogRow
from index.duplicates.duplicate_config import LIMITS_SETTING, DuplicateConfig
from index.duplicates.near_duplicates import KeptImages, resolve_limits
from index.embedding.cached import hash_places, open_cached_engine
from index.embedding.engine import holding_bytes, in_checkpoints
from index.embedding.text_recognition import TextReader
from index.errors import ImageError, MissingDependencyError
from index.images.decode import find_facts
from index.images.image_files import decode_image
from index.items import EmbeddedItem, Place
from index.outputs import COPY, SEMANTIC
from index.progress import Progress
from index.sources.reading import read_indexed
from index.sources.source import ImageSource
from index.text import count_images
from index.threads import map_ahead, usable_cores
from index.vectors.shards import VectorRows, gather_rows, write_checkpoint
from index.vectors.stores import hold_vectors
from index.versions.manifest import CATALOG_NAME
from index.writing.build_config import BuildConfig
from index.writing.shard_plan import find_outcomes
from index.writing.workspace import CHECKPOINTS, Workspace

logger = logging.getLogger(__name__)

_HASHED_AT_ONCE = 256
_COMPARED_ROWS = 4096


def embed_pending(work: Workspace) -> None:
    """Embed every pending row, after a look at the bytes of those that may not have changed; remove vanished rows."""
    catalog, sources = work.catalog, work.catalog.sources()
    for move in catalog.moved_sources():
        logger.warning("%s", move)
    catalog.record_places()
    comparing, compared = work.begin_step("Comparing"), 0
    for hashed in _hash_rows(catalog.changed(), sources, config=work.config):
        catalog.confirm(hashed)
        compared += len(hashed)
        comparing(compared, 0)
    for hashed in _hash_rows(catalog.moved_candidates(), sources, config=work.config):
        work.counts["moved"] += catalog.confirm_moved(hashed)
        compared += len(hashed)
        comparing(compared, 0)
    work.counts["vanished"] = catalog.drop_vanished()
    if work.kept_ids is not None:  # their duplicates stay, also where this is stopped
        catalog.make_pending(work.find_lost().tolist(), confirm=True)
    _embed(work, sources)
    if work.kept_ids is not None and catalog.count_orphans():  # their images cannot be embedded any more
        with catalog.transaction():
            catalog.release_duplicates()
        _embed(work, sources)
    _describe(work, sources)
    while True:
        while catalog.skip_matching():
            _embed(work, sources)
        _mark_duplicates(work, progress=work.begin_step("Finding duplicates"))
        if not _read_texts(work, sources) or not catalog.skip_matching():  # a condition may be on the text
            break
        _embed(work, sources)


def _hash_rows(
    rows: Iterable[CatalogRow], sources: Mapping[int, ImageSource], *, config: BuildConfig
) -> Iterator[list[tuple[CatalogRow, str | None]]]:
    """Blocks of rows with the SHA-256 of their current bytes; None where they cannot be read."""
    placed: dict[int, CatalogRow] = {}

    def places() -> Iterator[tuple[int, Place]]:
        for row in rows:
            placed[row.id] = row
            yield row.id, sources[row.source].locate(row)

    with hash_places(places(), workers=config.workers or usable_cores()) as hashed:
        while some := list(islice(hashed, _HASHED_AT_ONCE)):
            yield [(placed.pop(number), place.sha256) for number, place in some]


def _embed(work: Workspace, sources: Mapping[int, ImageSource]) -> None:
    catalog, config, total = work.catalog, work.config, work.catalog.count("pending")
    if not total:
        return
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
            batches = engine.embed(
                (row.id, replace(sources[row.source].locate(row), sha256=row.sha256))
                for row in catalog.rows(status="pending")
            )
        stack.enter_context(closing(batches))
        for items in in_checkpoints(
            batches,
            images=config.checkpoint_images,
            seconds=config.checkpoint_seconds,
            progress=lambda done: work.progress(done, total),
        ):
            work.counts["new_images"] += _save_checkpoint(work, items)
        work.counts["from_cache"] += 0 if engine is None else engine.found


def _save_checkpoint(work: Workspace, items: Sequence[EmbeddedItem]) -> int:
    """Write the vectors of some items, then record their rows in one transaction; the number of vectors."""
    usable = [(item.id, item.vector) for item in sorted(items, key=attrgetter("id")) if item.vector is not None]
    checkpoints = dict[str, str]()
    if usable:
        name = f"{len(work.catalog.checkpoints()):09d}.npy"
        ids = np.array([key for key, _ in usable], dtype=np.int64)
        rows = VectorRows(ids, np.stack([vector for _, vector in usable]))
        checkpoints[name] = write_checkpoint(work.folder / CHECKPOINTS / name, rows)
    work.catalog.record_outcomes(items, checkpoints=checkpoints)
    return len(usable)


def _mark_duplicates(work: Workspace, *, progress: Progress) -> None:
    """Mark near-duplicates by the gallery's settings; images kept before stay, and new ones with a label come first."""
    catalog = work.catalog
    kind = catalog.setting("dedup")
    if kind is None:
        return
    ids, hashes, is_labelled = catalog.fingerprints()
    kept_ids = np.empty(0, dtype=np.int64) if work.kept_ids is None else work.kept_ids
    if work.kept_ids is None and work.base is not None:
        with read_catalog(work.base.folder / CATALOG_NAME) as base:
            names = ("dedup", *(field.name for field in fields(DuplicateConfig)))
            if all(base.setting(name) == catalog.setting(name) for name in names):
                kept_ids = base.indexed_ids()
    is_kept = np.isin(ids, np.concatenate([kept_ids, catalog.kept_images()]))
    if is_kept.all():
        return
    order = [ids[is_kept], ids[~is_kept & is_labelled], ids[~is_kept & ~is_labelled]]
    if kind == "exact":
        catalog.set_duplicates(_exact_duplicates(catalog.repeated(), np.concatenate(order), kept=len(order[0])))
    else:
        catalog.set_duplicates(_near_duplicates(work, ids, hashes, order=order, progress=progress))


def _describe(work: Workspace, sources: Mapping[int, ImageSource]) -> None:
    """Read the facts of files that are not known yet, where all are wanted."""
    catalog, config = work.catalog, work.config
    if not (total := count_undescribed(catalog)):
        return
    progress, workers = work.begin_step("Reading EXIF"), config.workers or usable_cores()
    places = (replace(sources[row.source].locate(row), sha256=row.sha256) for row in catalog.select(UNREAD_ROWS))

    def read(place: Place) -> list[tuple[str, Mapping[str, Any]]]:
        try:
            with holding_bytes(place):
                image = decode_image(read_indexed(place), name=place.name, target_side=1, max_pixels=config.max_pixels)
            return [(str(place.sha256), find_facts(image))]
        except ImageError:  # the file is gone, or another one now
            return []

    with closing(map_ahead(read, places, workers=workers, ahead=2 * workers)) as found:
        for some in in_checkpoints(
            found,
            images=config.checkpoint_images,
            seconds=config.checkpoint_seconds,
            progress=lambda done: progress(done, total),
        ):
            record_facts(catalog, some, is_pass=True)
    end_pass(catalog)


def _read_texts(work: Workspace, sources: Mapping[int, ImageSource]) -> bool:
    """Read the text in images whose content is new, if the gallery has text; whether it has."""
    catalog, config = work.catalog, work.config
    if catalog.setting(TEXTS_SETTING) is None:
        return False
    if total := count_unread(catalog):
        try:
            reader = TextReader(cache=config.cache, workers=config.workers)
        except MissingDependencyError as error:
            logger.warning("the text in %s was not read: %s", count_images(total), error)
        else:
            progress = work.begin_step("Reading text")
            places = (replace(sources[row.source].locate(row), sha256=row.sha256) for row in unread_rows(catalog))
            with reader, closing(reader.read(places)) as batches:
                for texts in in_checkpoints(
                    batches,
                    images=config.checkpoint_images,
                    seconds=config.checkpoint_seconds,
                    progress=lambda done: progress(done, total),
                ):
                    record_texts(catalog, texts)
            if reader.failed:
                first = f"the first is {reader.first_problem}"
                logger.warning("no text could be read in %s; %s", count_images(reader.failed), first)
    apply_texts(catalog)
    return True


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
    work: Workspace, ids: Ids, hashes: Ids, *, order: Sequence[Ids], progress: Progress
) -> list[tuple[int, int]]:
    """(row, kept image) of near-duplicates of earlier images; the first array of the order is kept whole."""
    catalog = work.catalog
    given = {field.name: json.loads(catalog.setting(field.name) or "null") for field in fields(DuplicateConfig)}
    contract = work.embedder.contract
    output = COPY if COPY in contract.widths else SEMANTIC
    files = [*hold_vectors(work.base, output), *work.vector_files()[output]]
    read = partial(gather_rows, files=files, embedding_dim=contract.widths[output])
    threshold = contract.copy_threshold if output == COPY else None
    config = resolve_limits(DuplicateConfig(**given), copy_threshold=threshold, catalog=catalog, read=read)
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
