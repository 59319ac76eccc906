"""What a catalogue's operations cost by its rows, alone: no vector is written. Run in a process of its own.

`python -m benchmarks.scale.scale_catalog` takes settings as JSON on stdin and prints one JSON document.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.indexing.index_collection import Collection, settle_row
from benchmarks.indexing.index_images import take_batches
from benchmarks.scale.scale_gallery import count_bytes
from benchmarks.scale.stopwatch import Stopwatch, watching_memory
from index.catalog.facets import count_values
from index.catalog.reader import Catalog, read_catalog
from index.catalog.row_metadata import has_spoiled_labels, has_spoiled_metadata
from index.catalog.writer import Outcome, write_catalog
from index.file_hash import hash_file
from index.filters.parser import parse_filter
from index.sources.folder import FolderSource
from index.sources.items import FoundItem

CHECKPOINT_ROWS = 4096  # more than a build's, whose checkpoints hold the vectors that cost the most there
_ASKED_IDS = 100
_REPEATS = 3


def measure(folder: Path, *, rows: int, seed: int, clock: str) -> dict[str, Any]:
    """Make a catalogue, read it, change one row of it; seconds, bytes on disk, and the most memory of each part."""
    collection, work, finished = Collection(rows), folder / "catalog.sqlite", folder / "finished.sqlite"
    folder.mkdir(parents=True)
    making, reading, changing = Stopwatch(clock), Stopwatch(clock), Stopwatch(clock)
    with watching_memory() as made:
        make(collection, work, finished, making)
    most, size = count_bytes(folder), finished.stat().st_size
    for path in folder.glob("catalog.sqlite*"):
        path.unlink()
    with watching_memory() as read:
        read_all(finished, collection, reading, seed=seed)
    with watching_memory() as changed:
        peak = change_one(finished, work, folder / "next.sqlite", changing)
    shutil.rmtree(folder)
    memory = {name: peak.most["anonymous"] for name, peak in (("make", made), ("read", read), ("change", changed))}
    return {
        "bytes": size, "disk": {"make": most, "change": peak}, "memory": memory,
        "make": making.seconds, "read": reading.seconds, "change": changing.seconds,
    }  # fmt: skip


def make(collection: Collection, work: Path, finished: Path, watch: Stopwatch) -> None:
    """Scan, settle and finish, as a build does."""
    with write_catalog(work) as catalog:
        catalog.prepare()
        numbers = catalog.add_sources([FolderSource("/photos")])
        with watch.timing("scan"):
            found = ((numbers[0], item) for item in collection.items())
            catalog.record_scan(found, scanned=numbers, restore=False)
        with watch.timing("settle"):
            for rows in take_batches(catalog.rows(status="pending"), CHECKPOINT_ROWS):
                catalog.record_outcomes(map(settle_row, rows), checkpoint=None)
        with watch.timing("list ids"):
            np.array(catalog.indexed_ids(), dtype=np.int64)
        with watch.timing("finish"):
            catalog.write_finished(finished, compact=False)
        with watch.timing("hash"):
            hash_file(finished)


def read_all(path: Path, collection: Collection, watch: Stopwatch, *, seed: int) -> None:
    """Seconds of what is asked of a finished catalogue, each time with opening it: the median of some times."""
    chosen = np.random.default_rng(seed).integers(1, collection.rows, size=_ASKED_IDS, endpoint=True).tolist()
    label = collection.label(collection.rows // 2)
    asked: Mapping[str, Callable[[Catalog], object]] = {
        "open": lambda catalog: has_spoiled_labels(catalog.connection),
        "page in the middle": lambda catalog: list(catalog.rows(after=collection.rows // 2, limit=50)),
        "page of a label": lambda catalog: list(catalog.rows(label=label, limit=50)),
        f"{_ASKED_IDS} rows by id": lambda catalog: catalog.find(chosen),
        "count by status": lambda catalog: catalog.count("indexed"),
        "ids of a label": lambda catalog: catalog.matching_ids(parse_filter(f"label = '{label}'")),
        "ids by metadata": lambda catalog: catalog.matching_ids(parse_filter("shop = 'shop-7'")),
        "ids by path": lambda catalog: catalog.matching_ids(parse_filter("path LIKE '%2019-07%'")),
        "look for spoiled metadata": lambda catalog: has_spoiled_metadata(catalog.connection),
        "facets": lambda catalog: count_values(catalog, None, columns=["shop"]),
        "list ids": lambda catalog: catalog.indexed_ids(),
    }

    def ask(question: Callable[[Catalog], object]) -> None:
        with read_catalog(path) as catalog:
            question(catalog)

    for name, question in asked.items():
        watch.take_median(name, ask, [question] * _REPEATS)


def change_one(finished: Path, work: Path, following: Path, watch: Stopwatch) -> int:
    """The steps by which any command makes the next version, for one new row; the bytes on disk at the end."""
    with watch.timing("check what is there"):
        hash_file(finished)
    with watch.timing("copy"):
        shutil.copyfile(finished, work)
    with write_catalog(work) as catalog:
        with watch.timing("add one row"):
            catalog.prepare()
            numbers = list(catalog.sources())
            item = FoundItem("one-more.jpg", 12_345, 1_700_000_000_000_000_000)
            catalog.record_scan([(numbers[0], item)], scanned=[], restore=True)
            row = next(catalog.rows(status="pending"))
            catalog.record_outcomes([Outcome(row.id, "0" * 64, 0)], checkpoint=None)
            catalog.drop_vanished()
        with watch.timing("count, list ids"):
            catalog.count("indexed")
            catalog.skipped_by_reason()
            np.array(catalog.indexed_ids(), dtype=np.int64)
        with watch.timing("compare"):
            if catalog.same_as(finished):
                sys.exit("the catalogue is the same as before though a row was added")
        with watch.timing("finish"):
            catalog.write_finished(following, compact=False)
        most = count_bytes(finished.parent)
    with watch.timing("hash"):
        hash_file(following)
    return most


def main() -> None:
    settings = json.load(sys.stdin)
    json.dump(measure(Path(settings.pop("folder")), **settings), sys.stdout)


if __name__ == "__main__":
    main()
