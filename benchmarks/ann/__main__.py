"""Our index beside hnswlib, usearch and plain faiss: recall and rate, filters, memory, and its own promise.

Vectors are crops of photos through a frozen backbone and PCA; the photos that ask have no crop among those found.
Built indexes and measurements are kept below `--out`, so a stopped command goes on. A million vectors:

    python -m benchmarks.ann --out DIR --count 1000000 --width 64 --part curves --part memory
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

# Read when OpenMP starts, with the imports below: waiting threads leave the cores to others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.ann.ann_bench import AnnBench
from benchmarks.ann.ann_curves import measure_curves
from benchmarks.ann.ann_filters import measure_filters
from benchmarks.ann.ann_millions import format_millions, measure_millions
from benchmarks.ann.ann_pictures import plot_curves
from benchmarks.ann.ann_tables import format_curves, format_filters, format_memory
from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, print_machine
from index.vectors.kinds.registry import INDEX_TYPES

LIBRARIES = ("hnswlib", "usearch", "faiss")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=("curves", "filters"))
    add = parser.add_argument
    add("--count", type=int, default=200_000, help="vectors to search among")
    add("--width", action="append", type=int, help="of the vectors; may be repeated; default 64, 512")
    add("--around", type=int, default=10_000_000, help="vectors made around those, of the part ten-million")
    add("--without", action="append", choices=LIBRARIES, default=[], help="leave a library out; may be repeated")
    add("--index-type", choices=INDEX_TYPES, default="auto", help="of ours")
    add("--vectors", type=Path, help="folder that keeps the vectors of photos (default: --out)")
    add("--base", type=Path, help="own vectors instead: an .npy file of (N, D) float32 unit rows")
    add("--queries", type=Path, help="and those that ask: (Q, D)")
    options = parse_counts(parser, arguments, "count", "around")
    if (options.base is None) != (options.queries is None):
        parser.error("--base and --queries go together")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("ann"):
        run(parse_options(arguments))


def run(options: argparse.Namespace) -> None:
    """Measure each part asked for at each width, and print all tables at the end."""
    widths = sorted(options.width or (64, 512), reverse=True)  # what is made wide serves narrower
    tables = []
    for width in widths if options.base is None else [0]:
        bench = AnnBench.open(options, width=width)
        suffix = "-{}-{}".format(*bench.base.shape)
        measured, found = run_parts(PARTS, options, bench, suffix=suffix)
        tables += found
        if "curves" in measured:
            plot_curves(measured["curves"], options.out / f"curves{suffix}.png")
    print_machine([options.seed])
    print("", *tables, sep="\n\n")


PARTS = {
    "curves": Part(lambda bench, options: measure_curves(bench, rounds=options.rounds), format_curves),
    "filters": Part(lambda bench, options: measure_filters(bench, seed=options.seed), format_filters),
    "ten-million": Part(
        lambda bench, options: measure_millions(bench, count=options.around, seed=options.seed), format_millions
    ),
    "memory": Part(lambda bench, _: bench.measure_memory(), format_memory),
}


if __name__ == "__main__":
    main()
