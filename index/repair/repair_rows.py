"""The catalogue of a gallery that is mended: rows that are left, and the images whose vectors are lost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from index.arrays import Ids
from index.catalog.rows import COLUMNS, CatalogRow
from index.catalog.writer import CatalogWriter
from index.embedding.engine import EmbeddedItem
from index.embedding.registry import open_engine
from index.errors import ImageError, InputError
from index.network.remote_store import NO_RIGHTS, REFUSED, UNREACHABLE
from index.network.stores import is_address
from index.progress import Progress
from index.repair.salvaged_rows import SalvagedRows
from index.sources.items import Place
from index.text import printable_path
from index.writing.assigned_labels import find_assigned
from index.writing.build_config import BuildConfig
from index.writing.scanning import scan_sources
from index.writing.workspace import Workspace


def fill_catalog(
    catalog: CatalogWriter, rows: Path | SalvagedRows, *, stored: Ids, members: Ids | None, least_id: int
) -> None:
    """Write the rows that are left into an empty catalogue; indexed ones without a stored vector are pending.

    Args:
        rows: a sound catalogue, or rows that could be read.
        stored: (n,) int64 rising ids of sound vectors.
        members: (n,) int64 rising ids of all that the version to be mended had, where that is known.
        least_id: no new item gets an id below.
    """
    if isinstance(rows, Path):
        _copy_rows(catalog, rows)
        if members is not None:
            _take_out_left(catalog, members)
    else:
        _insert_rows(catalog, rows)
    lost = np.setdiff1d(np.array(catalog.indexed_ids(), dtype=np.int64), stored, assume_unique=True)
    catalog.connection.executemany(
        "UPDATE images SET status = 'pending' WHERE id = ?", ((number,) for number in lost.tolist())
    )
    catalog.raise_next_id(least_id)
    if not isinstance(rows, Path):
        _doubt_rows(catalog)


def _copy_rows(catalog: CatalogWriter, path: Path) -> None:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as source:
        for table in ("sources", "settings", "images"):
            columns = [row[1] for row in source.execute(f"PRAGMA table_info({table})")]
            marks = ", ".join("?" * len(columns))
            rows = source.execute(f"SELECT {', '.join(columns)} FROM {table}")
            catalog.connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)


def _take_out_left(catalog: CatalogWriter, members: Ids) -> None:
    """Bring an older catalogue in line with the version: rows of no member were taken out, or their files are gone."""
    sources = catalog.sources()
    for number in np.setdiff1d(np.array(catalog.indexed_ids(), dtype=np.int64), members).tolist():
        row = catalog.find([number])[number]
        place = sources[row.source].locate(row)
        if row.archive is None and place.file.is_file() and place.file.stat().st_mtime_ns == row.mtime_ns:
            catalog.take_out([row])
        else:
            catalog.forget(row)


def _insert_rows(catalog: CatalogWriter, rows: SalvagedRows) -> None:
    execute = catalog.connection.execute
    for number, kind, location in rows.sources:
        execute("INSERT OR IGNORE INTO sources (id, kind, location) VALUES (?, ?, ?)", (number, kind, location))
    for pair in rows.settings.items():
        execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", pair)
    marks = ", ".join("?" * len(COLUMNS.split(", ")))
    catalog.connection.executemany(f"INSERT OR IGNORE INTO images ({COLUMNS}) VALUES ({marks})", rows.images)


def _doubt_rows(catalog: CatalogWriter) -> None:
    """Let rows of a damaged catalogue be pending where their files are there, so that the bytes decide."""
    sources = catalog.sources()
    for row in catalog.select("status IN ('indexed', 'duplicate')"):
        if sources[row.source].locate(row).is_there():
            catalog.connection.execute("UPDATE images SET status = 'pending' WHERE id = ?", (row.id,))


def list_unreachable(catalog: CatalogWriter, *, stored: Ids) -> list[tuple[str, int]]:
    """Places of sources that are not there, and how many images each has whose vectors are lost."""
    sources = catalog.sources()
    missing = {number for number, source in sources.items() if not source.is_there()}
    counts = Counter(row.source for row in _lost_rows(catalog, stored) if row.source in missing)
    return [(sources[number].location, count) for number, count in sorted(counts.items())]


def _lost_rows(catalog: CatalogWriter, stored: Ids) -> Iterator[CatalogRow]:
    """Rows that were indexed and have no sound vector; they may be settled meanwhile."""
    for row in catalog.rows(status="pending"):
        place = int(np.searchsorted(stored, row.id))
        is_stored = place < len(stored) and stored[place] == row.id
        if row.sha256 is not None and row.kept_id is None and not is_stored:
            yield row


def embed_lost(
    work: Workspace,
    catalog: CatalogWriter,
    *,
    stored: Ids,
    drop_missing: bool,
    config: BuildConfig,
    progress: Progress,
) -> list[str]:
    """Embed the images again whose vectors are lost; the paths of those that no file is left of.

    Of the same bytes they keep their ids, other bytes get new ones.

    Raises:
        InputError: an address does not answer, and images of those shall not be dropped; what is done is kept.
    """
    sources = catalog.sources()
    total, done, ahead = sum(1 for _ in _lost_rows(catalog, stored)), 0, dict[int, CatalogRow]()

    def places() -> Iterator[tuple[int, Place]]:
        for row in _lost_rows(catalog, stored):
            ahead[row.id] = row
            yield row.id, sources[row.source].locate(row)

    gone: list[str] = []
    gathered: list[EmbeddedItem] = []
    engine = open_engine(
        work.embedder, workers=config.workers, batch_size=config.batch_size, max_pixels=config.max_pixels
    )
    for batch in engine.embed(places()):
        done += len(batch)
        for item in batch:
            row = ahead.pop(item.id)
            if item.sha256 is None:
                if not drop_missing and item.problem is not None and _is_unanswered(item.problem):
                    work.save_checkpoint(catalog, gathered)
                    raise InputError(
                        f"{item.problem}; its vector is lost, and cannot be made again now: run this again when it can "
                        "be had, or let such images go with --drop-missing"
                    )
                gone.append(row.path)
                catalog.forget(row)
            elif item.sha256 == row.sha256:
                gathered.append(item)
            else:
                catalog.renew(row)
        if len(gathered) >= config.checkpoint_images or done == total:
            work.save_checkpoint(catalog, gathered)
            gathered = []
        progress(done, total)
    return gone


def _is_unanswered(problem: ImageError) -> bool:
    """Whether an image on a network could not be had, which says nothing of whether it is there."""
    return is_address(problem.path) and problem.reason in (UNREACHABLE, NO_RIGHTS, REFUSED)


def find_new(catalog: CatalogWriter, *, progress: Progress) -> list[str]:
    """Look for images in the sources that no row is left of; what could not be looked at, in words."""
    notes = []
    sources = catalog.sources()
    numbers = [number for number, source in sources.items() if source.is_there()]
    for number in sources.keys() - set(numbers):
        notes.append(f"{printable_path(sources[number].location)} is not there, and was not looked through")
    try:
        found = scan_sources(catalog, numbers, labels=find_assigned(catalog), progress=progress)
        catalog.record_scan(found, scanned=numbers, restore=False)
    except InputError as error:
        notes.append(f"the sources were not looked through for new images: {error}")
    return notes
