"""ANN search beside hnswlib, usearch and plain faiss: recall@10 against queries/s, and searches with a filter.

curves    every contestant's parameters, one query after another and all at once; and our index's own recall figure
filters   searches among 50 % to 0.05 % of the rows, at random or alike

Vectors are crops of photos through a frozen backbone and PCA; the photos of the queries have no crop among them. Built
indexes and measurements are kept in `--out`: a stopped command continues.

    python -m benchmarks.ann --out bench/ann
    python -m benchmarks.ann --out bench/ann --count 1000000 --width 64 --part curves
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

# Read when OpenMP starts, with the imports below: waiting threads leave the cores to others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.ann.bench import AnnBench
from benchmarks.ann.curves import measure_curves
from benchmarks.ann.filters import measure_filters
from benchmarks.ann.tables import format_curves, format_filters
from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, print_machine
from index.vectors.kinds import INDEX_TYPES

LIBRARIES = ("hnswlib", "usearch", "faiss")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=tuple(PARTS))
    add = parser.add_argument
    add("--count", type=int, default=200_000, help="vectors to search among")
    add("--width", action="append", type=int, help="of the vectors; may be repeated; default 64, 512")
    add("--without", action="append", choices=LIBRARIES, default=[], help="leave a library out; may be repeated")
    add("--index-type", choices=INDEX_TYPES, default="auto", help="of ours")
    add("--vectors", type=Path, help="folder that keeps the vectors of photos (default: --out)")
    add("--base", type=Path, help="own vectors instead: an .npy file of (N, D) float32 unit rows")
    add("--queries", type=Path, help="and those that ask: (Q, D)")
    options = parse_counts(parser, arguments, "count")
    if (options.base is None) != (options.queries is None):
        parser.error("--base and --queries go together")
    return options


@ending_in_words("ann")
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each part asked for at each width, and print all tables at the end."""
    options = parse_options(arguments)
    widths = sorted(options.width or (64, 512), reverse=True)  # what is made wide serves narrower
    tables = []
    for width in widths if options.base is None else [0]:
        bench = AnnBench.open(options, width=width)
        suffix = "-{}-{}".format(*bench.base.shape)
        tables += run_parts(PARTS, options, bench, suffix=suffix)[1]
    print_machine([options.seed])
    print("", *tables, sep="\n\n")


PARTS = {
    "curves": Part(lambda bench, options: measure_curves(bench, rounds=options.rounds), format_curves),
    "filters": Part(lambda bench, options: measure_filters(bench, seed=options.seed), format_filters),
}


if __name__ == "__main__":
    main()
