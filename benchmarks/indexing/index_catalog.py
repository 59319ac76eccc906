"""What does the catalogue of a gallery cost when it has a million rows?

Makes one through the code that `retrieval index build` uses: a scan of made-up items (1,000 labels, some with metadata,
1 % skipped), their outcomes in checkpoints, a finished version. Then reads it, the median of `--repeats`: each query
with opening the catalogue, and whole commands in processes of their own. And brings it up to date as
`retrieval index update` does, once each: without a change, with new, changed and vanished items, with moved ones.
No image is read or embedded: these are the costs of the rows alone.

    python -m benchmarks.indexing.index_catalog --out bench/catalog --rows 1000000
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import print_machine, run_retrieval, write_record
from benchmarks.common.tables import format_spread, format_table, spread
from benchmarks.indexing.index_collection import MOST_CHANGED_EACH, Collection, settle_row
from benchmarks.indexing.index_images import take_batches
from index.arrays import Vectors
from index.catalog.reader import Catalog, read_catalog
from index.catalog.rows import STATUSES
from index.catalog.writer import CatalogWriter, Checkpoint, write_catalog
from index.images.preprocess import PreprocessConfig
from index.model.contract import ModelContract
from index.outputs import KIND
from index.sources.folder import FolderSource
from index.vectors.ann_config import INDEX_SETTING, AnnConfig
from index.vectors.shards import VectorRows, find_checkpoint, write_checkpoint
from index.vectors.store import Publication
from index.versions.gallery_parts import make_mark
from index.versions.manifest import CATALOG_NAME
from index.versions.versions import publish_version
from index.writing.build_config import BuildConfig
from index.writing.publishing import write_version

PAGE_ROWS = 50
FOUND_IDS = 100
EMBEDDING_DIM = 8  # the vectors are not what is measured

Seconds = dict[str, float]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    out = "folder for the record, the table and OUT/made-up-gallery, which is made anew"
    add("--out", type=Path, required=True, help=out)
    add("--rows", type=int, default=1_000_000, help="items in the catalogue")
    add("--edits", type=int, default=1000, help="items that are new, changed, vanished in a later scan")
    add("--moved", type=int, default=1000, help="items that are in another folder in a later scan")
    add("--repeats", type=int, default=11, help="times that each reading is repeated")
    add("--seed", type=int, default=0, help="of the ids looked up")
    options = parser.parse_args(arguments)
    for name in ("edits", "moved", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.rows < (least := MOST_CHANGED_EACH * max(2 * options.edits, options.moved)):
        parser.error(f"--rows must be at least {least:,} with as many --edits and --moved")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    results = measure(options)
    write_record(options.out / "record.json", settings=vars(options), results=results)
    table = format_catalog(results)
    (options.out / "table.md").write_text(f"{table}\n")
    print_machine([options.seed])
    print(f"\n{table}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make the catalogue, read it, change it; seconds of what is written, milliseconds of what is read."""
    gallery, work = options.out / "made-up-gallery", options.out / "made-up-work"
    for folder in (gallery, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    collection = Collection(options.rows)
    making, sizes = make_gallery(collection, gallery, work)
    finished = gallery / "versions" / "000001" / CATALOG_NAME
    reading = measure_queries(finished, collection, repeats=options.repeats, seed=options.seed)
    commands = measure_commands(gallery, repeats=options.repeats)
    edits = options.edits
    edited = Collection(options.rows, new=edits, changed=edits, vanished=edits)
    later = {
        "nothing changed": Collection(options.rows),
        f"{edits:,} new, {edits:,} changed, {edits:,} vanished": edited,
        f"{options.moved:,} moved": Collection(options.rows, moved=options.moved),
    }
    updates = {name: measure_update(found, finished, work) for name, found in later.items()}
    return {
        "rows": options.rows, "making_seconds": making, "megabytes": sizes, "reading_ms": reading,
        "commands_ms": commands, "update_seconds": updates,
    }  # fmt: skip


def make_gallery(collection: Collection, gallery: Path, work: Path) -> tuple[Seconds, dict[str, float]]:
    """A gallery of one version with the collection's catalogue; seconds of its steps, and megabytes of the files."""
    seconds: Seconds = {}
    with timing(seconds, "making the items, which is a part of every scan"):
        deque(collection.items(), maxlen=0)
    with write_catalog(work / CATALOG_NAME) as catalog:
        catalog.prepare()
        numbers = catalog.add_sources([FolderSource("/photos")])
        record_scan(catalog, collection, numbers, seconds, name="first scan")
        settle(catalog, seconds)
        sizes = {}
        for compact, name in ((False, "finished"), (True, "finished, compact")):
            with timing(seconds, f"write_finished, {'compact' if compact else 'as it is'}"):
                catalog.write_finished(work / "finished.sqlite", compact=compact)
            sizes[name] = (work / "finished.sqlite").stat().st_size / 1e6
            (work / "finished.sqlite").unlink()
        (work / "model.onnx").touch()
        catalog.set({INDEX_SETTING: AnnConfig(index_type="flat").to_text()})  # nothing is to be found among equals
        equals = np.ones((len(catalog.indexed_ids()), EMBEDDING_DIM), dtype=np.float32)
        contract = ModelContract("none", "raw", EMBEDDING_DIM, PreprocessConfig())
        publish(catalog, gallery, work, vectors=equals, model=work / "model.onnx", contract=contract)
    shutil.rmtree(work)
    return seconds, sizes


def publish(
    catalog: CatalogWriter, gallery: Path, work: Path, *, vectors: Vectors, model: Path, contract: ModelContract
) -> None:
    """Make the first version of a gallery of the catalogue, with (N, D) float32 vectors of what is indexed."""
    ids = np.array(catalog.indexed_ids(), dtype=np.int64)
    sha256 = write_checkpoint(work / "vectors.npy", VectorRows(ids, vectors))
    checkpoints, version = [find_checkpoint(work / "vectors.npy", sha256=sha256)], work / "version"
    version.mkdir()
    made = {KIND: checkpoints}
    write_version(
        version,
        catalog,
        gallery=gallery,
        base=None,
        made=made,
        model=model,
        contract=contract,
        runtime=None,
        how=Publication(),
    )
    make_mark(gallery)
    publish_version(gallery, version, name="000001")


def measure_update(found: Collection, finished: Path, work: Path) -> Seconds:
    """Seconds of the steps that bring a copy of the finished catalogue in line with what is found now."""
    seconds: Seconds = {}
    work.mkdir(parents=True)
    with timing(seconds, "copy, prepare"):
        shutil.copyfile(finished, work / CATALOG_NAME)
        with write_catalog(work / CATALOG_NAME) as catalog:
            catalog.prepare()
    with write_catalog(work / CATALOG_NAME) as catalog:
        record_scan(catalog, found, list(catalog.sources()), seconds, name="scan")
        size = BuildConfig().checkpoint_images
        with timing(seconds, "changed items confirmed"):
            for rows in take_batches(catalog.changed(), size):
                catalog.confirm([(row, "0" * 64) for row in rows])
        with timing(seconds, "moved items found"):
            moved = sum(
                catalog.confirm_moved([(row, settle_row(row).sha256) for row in rows])
                for rows in take_batches(catalog.moved_candidates(), size)
            )
        with timing(seconds, "vanished items dropped"):
            vanished = catalog.drop_vanished()
        if (moved, vanished) != (found.moved, found.vanished):
            sys.exit(f"{moved} moved and {vanished} vanished items, expected {found.moved} and {found.vanished}")
        settle(catalog, seconds)
        with timing(seconds, "same_as"):
            same = catalog.same_as(finished)
        if same != (found == Collection(found.rows)):
            sys.exit("the catalogue is the same as before though items changed, or the other way round")
        with timing(seconds, "write_finished, as it is"):
            catalog.write_finished(work / "finished.sqlite", compact=False)
    shutil.rmtree(work)
    return seconds


def record_scan(
    catalog: CatalogWriter, found: Collection, numbers: Sequence[int], seconds: Seconds, *, name: str
) -> None:
    with timing(seconds, name):
        items = ((numbers[0], item) for item in found.items())
        catalog.record_scan(items, scanned=numbers, restore=False)


def settle(catalog: CatalogWriter, seconds: Seconds) -> None:
    """Settle what is pending in checkpoints, as a build does."""
    size = BuildConfig().checkpoint_images
    with timing(seconds, f"outcomes in checkpoints of {size}"):
        first = catalog.count_checkpoints()
        for number, rows in enumerate(take_batches(catalog.rows(status="pending"), size), start=first):
            name = f"{number:09d}.npy"
            checkpoint = Checkpoint(name, hashlib.sha256(name.encode()).hexdigest())
            catalog.record_outcomes(map(settle_row, rows), checkpoint=checkpoint)


@contextmanager
def timing(seconds: Seconds, name: str) -> Iterator[None]:
    """Put the seconds of what is done within under a name."""
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started
    print(f"  {name}: {seconds[name]:.2f} s", file=sys.stderr, flush=True)


def measure_queries(path: Path, collection: Collection, *, repeats: int, seed: int) -> dict[str, dict[str, float]]:
    """Milliseconds to open the catalogue and to have what is asked of it."""
    middle = collection.rows // 2
    label = collection.label(middle)
    chosen = np.random.default_rng(seed).integers(1, collection.rows, size=FOUND_IDS, endpoint=True).tolist()
    queries: dict[str, Callable[[Catalog], object]] = {
        f"first page of {PAGE_ROWS}": lambda catalog: list(catalog.rows(limit=PAGE_ROWS)),
        "page in the middle": lambda catalog: list(catalog.rows(after=middle, limit=PAGE_ROWS)),
        "page of a label": lambda catalog: list(catalog.rows(label=label, limit=PAGE_ROWS)),
        "page of a label, indexed": lambda catalog: list(
            catalog.rows(status="indexed", label=label, limit=PAGE_ROWS)
        ),
        "page of skipped": lambda catalog: list(catalog.rows(status="skipped", limit=PAGE_ROWS)),
        "counts by status": lambda catalog: [catalog.count(status) for status in STATUSES],
        f"{FOUND_IDS} random ids": lambda catalog: catalog.find(chosen),
    }

    def ask(query: Callable[[Catalog], object]) -> object:
        with read_catalog(path) as catalog:
            return query(catalog)

    return {name: repeat(partial(ask, query), name, repeats=repeats) for name, query in queries.items()}


def measure_commands(gallery: Path, *, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of whole commands, each time in a new process."""
    commands = {
        "retrieval index list": ("list", gallery),
        "retrieval index list --status skipped": ("list", gallery, "--status", "skipped"),
        "retrieval index info": ("info", gallery),
    }
    actions = {name: partial(run_retrieval, "index", *words) for name, words in commands.items()}
    return {name: repeat(action, name, repeats=repeats) for name, action in actions.items()}


def repeat(action: Callable[[], object], name: str, *, repeats: int) -> dict[str, float]:
    """Median, least and most milliseconds."""
    spans = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        spans.append(1000 * (time.perf_counter() - started))
    found = spread(spans)
    print(f"  {name}: {found['median']:.1f} ms", file=sys.stderr, flush=True)
    return found


def format_catalog(results: dict[str, Any]) -> str:
    """Markdown of `measure`: what is read, and what is written."""
    rows = results["rows"]
    spans = {**results["reading_ms"], **{f"`{name}`": span for name, span in results["commands_ms"].items()}}
    read = [(name, format_spread(span)) for name, span in spans.items()]
    written = [(name, f"{seconds:.2f}") for name, seconds in results["making_seconds"].items()]
    updates = results["update_seconds"]
    names = next(iter(updates.values()))
    steps = [(name, *(f"{update[name]:.2f}" for update in updates.values())) for name in names]
    sizes = [(name, f"{size / rows * 1e6:.0f}") for name, size in results["megabytes"].items()]
    return "\n\n".join([
        format_table([f"read, {rows:,} rows", "ms"], read), format_table([f"make, {rows:,} rows", "s"], written),
        format_table([f"bring up to date, {rows:,} rows; s where", *updates], steps),
        format_table(["file", "MB a million rows"], sizes),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
