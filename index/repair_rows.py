"""The catalogue of a gallery that is mended: rows that are left, and the images whose vectors are lost."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from index.ahead import usable_cores
from index.assigned_labels import find_assigned
from index.build_config import BuildConfig
from index.catalog import COLUMNS, CatalogRow
from index.catalog_writer import CatalogWriter
from index.errors import InputError
from index.exact import Ids
from index.images import printable_path
from index.items import Place
from index.pipeline import EmbeddedItem, embed_items
from index.progress import Progress
from index.salvaged_rows import SalvagedRows
from index.scanning import scan_sources
from index.sources import Source
from index.workspace import Workspace


def fill_catalog(
    catalog: CatalogWriter, rows: Path | SalvagedRows, *, stored: Ids, members: Ids | None, least_id: int
) -> None:
    """Write the rows that are left into an empty catalogue; indexed ones without a stored vector are pending.

    Args:
        catalog: the empty one.
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
    """Of a catalogue older than the version: what is no member any more was taken out, or is gone."""
    roots = {number: source.root for number, source in catalog.sources().items()}
    for number in np.setdiff1d(np.array(catalog.indexed_ids(), dtype=np.int64), members).tolist():
        row = catalog.find([number])[number]
        place = row.locate(roots[row.source])
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
    """Let rows of no sound catalogue whose files are there be settled by their bytes."""
    roots = {number: source.root for number, source in catalog.sources().items()}
    for row in catalog.select("status IN ('indexed', 'duplicate')"):
        if row.locate(roots[row.source]).file.is_file():
            catalog.connection.execute("UPDATE images SET status = 'pending' WHERE id = ?", (row.id,))


def list_unreachable(catalog: CatalogWriter, *, stored: Ids) -> list[tuple[str, int]]:
    """Places of sources that are not there, and how many images each has whose vectors are lost."""
    sources = catalog.sources()
    missing = {number for number, source in sources.items() if not is_there(source)}
    counts = Counter(row.source for row in _lost_rows(catalog, stored) if row.source in missing)
    return [(sources[number].location, count) for number, count in sorted(counts.items())]


def is_there(source: Source) -> bool:
    """Whether a source as a whole can be read now."""
    return os.path.isdir(source.root) if source.kind in ("folder", "glob") else os.path.exists(source.location)


def _lost_rows(catalog: CatalogWriter, stored: Ids) -> Iterator[CatalogRow]:
    """Rows that were indexed and have no sound vector; they may be settled meanwhile."""
    for row in catalog.rows(status="pending"):
        place = int(np.searchsorted(stored, row.id))
        is_stored = place < len(stored) and stored[place] == row.id
        if row.sha256 is not None and row.keeper is None and not is_stored:
            yield row


def embed_lost(
    work: Workspace, catalog: CatalogWriter, *, stored: Ids, config: BuildConfig, progress: Progress
) -> list[str]:
    """Embed the images again whose vectors are lost; the paths of those that no file is left of.

    Of the same bytes they keep their ids, other bytes get new ones.
    """
    roots = {number: source.root for number, source in catalog.sources().items()}
    total, done, ahead = sum(1 for _ in _lost_rows(catalog, stored)), 0, dict[int, CatalogRow]()

    def places() -> Iterator[tuple[int, Place]]:
        for row in _lost_rows(catalog, stored):
            ahead[row.id] = row
            yield row.id, row.locate(roots[row.source])

    gone: list[str] = []
    gathered: list[EmbeddedItem] = []
    for batch in embed_items(
        places(),
        work.embedder,
        batch_size=config.batch_size,
        workers=config.workers or usable_cores(),
        max_pixels=config.max_pixels,
    ):
        done += len(batch)
        for item in batch:
            row = ahead.pop(item.id)
            if item.sha256 is None:
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


def find_new(catalog: CatalogWriter, *, progress: Progress) -> list[str]:
    """Look for images in the sources that no row is left of; what could not be looked at, in words."""
    notes = []
    sources = catalog.sources()
    numbers = [number for number, source in sources.items() if is_there(source)]
    for number in sources.keys() - set(numbers):
        notes.append(f"{printable_path(sources[number].location)} is not there, and was not looked through")
    try:
        found = scan_sources(catalog, numbers, labels=find_assigned(catalog), progress=progress)
        catalog.record_scan(found, scanned=numbers, restore=False)
    except InputError as error:
        notes.append(f"the sources were not looked through for new images: {error}")
    return notes
