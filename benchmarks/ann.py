"""Our index beside hnswlib, usearch and plain faiss: recall and rate, filters, memory, and its own promise.

Vectors are crops of photos through a frozen backbone and PCA; the photos that ask have no crop among those found.
Built indexes and measurements are kept below `--out`, so a stopped command goes on. A million vectors:

    python -m benchmarks.ann --out DIR --count 1000000 --width 64 --part curves --part memory
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Read when OpenMP starts, with the imports below: waiting threads leave the cores to others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.ann_bench import AnnBench
from benchmarks.ann_curves import measure_curves
from benchmarks.ann_filters import measure_filters
from benchmarks.ann_memory import measure_memory
from benchmarks.ann_pictures import plot_curves
from benchmarks.ann_tables import format_curves, format_filters, format_memory
from benchmarks.record import ending_in_words, print_machine, write_record
from index.index_config import INDEX_TYPES

LIBRARIES = ("hnswlib", "usearch", "faiss")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for everything made: vectors, indexes, records, tables")
    add("--part", action="append", choices=list(PARTS), help="may be repeated; default curves, filters")
    add("--count", type=int, default=200_000, help="vectors to search among")
    add("--width", action="append", type=int, help="of the vectors; may be repeated; default 64, 512")
    add("--rounds", type=int, default=3, help="times that each contestant is measured")
    add("--without", action="append", choices=LIBRARIES, default=[], help="leave a library out; may be repeated")
    add("--index-type", choices=INDEX_TYPES, default="auto", help="of ours")
    add("--vectors", type=Path, help="folder that keeps the vectors of photos (default: --out)")
    add("--base", type=Path, help="own vectors instead: an .npy file of (N, D) float32 unit rows")
    add("--queries", type=Path, help="and those that ask: (Q, D)")
    add("--seed", type=int, default=0, help="of crops, of the photos that ask, of filters")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.count < 1:
        parser.error("--rounds and --count must be at least 1")
    if (options.base is None) != (options.queries is None):
        parser.error("--base and --queries go together")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("ann"):
        run(parse_options(arguments))


def run(options: argparse.Namespace) -> None:
    """Measure each part asked for at each width, write its record at once, and print all tables at the end."""
    options.out.mkdir(parents=True, exist_ok=True)
    widths = sorted(options.width or (64, 512), reverse=True)  # what is made wide serves narrower
    tables = []
    for width in widths if options.base is None else [0]:
        bench = AnnBench.open(options, width=width)
        count, width = bench.base.shape
        for part in options.part or ("curves", "filters"):
            print(f"{part}, {count:,} vectors, {width}-d", file=sys.stderr, flush=True)
            results = PARTS[part](bench, options)
            name = f"{part}-{count}-{width}"
            write_record(options.out / f"record-{name}.json", settings=vars(options), results=results)
            tables.append(TABLES[part](results))
            (options.out / f"table-{name}.md").write_text(f"{tables[-1]}\n")
            if part == "curves":
                plot_curves(results, options.out / f"{name}.png")
    print_machine([options.seed])
    print("", *tables, sep="\n\n")


PARTS: dict[str, Callable[[AnnBench, argparse.Namespace], dict[str, Any]]] = {
    "curves": lambda bench, options: measure_curves(bench, rounds=options.rounds),
    "filters": lambda bench, options: measure_filters(bench, seed=options.seed),
    "memory": lambda bench, options: measure_memory(bench),
}
TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "curves": format_curves,
    "filters": format_filters,
    "memory": format_memory,
}


if __name__ == "__main__":
    main()
