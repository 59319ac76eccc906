"""How large a machine does a collection need? Unit costs of small galleries, held against larger ones.

embedding   seconds of `retrieval index build` of some photos, of more, and of all: a rate, held against the last
galleries   a gallery of each size through the code of `index build`, its vectors drawn: written, opened, searched,
            filtered, verified, changed, indexed again; seconds, disk and memory. Costs are fitted to the sizes of
            `--fit` alone, `--rounds` times each, and their predictions held against what every size took
catalogue   the catalogue's operations alone at each size, so that it is seen which grow with it

What is measured is kept below OUT/measured for the same code, machine and options: a stopped command goes on, and a
size that stands is not measured again. It takes 4 GB of disk; a catalogue of ten million rows, and
`--ivf-rows 1000000`, take many minutes more each:

    python -m benchmarks.scale --out bench/scale
    python -m benchmarks.scale --out bench/scale --part catalogue --catalogue-sizes 10000 100000 1000000 10000000
    python -m benchmarks.scale --out bench/scale --tables docs/results/scale.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.kept import digest, hash_code
from benchmarks.common.record import describe_machine, ending_in_words, write_record
from benchmarks.scale.costs import APPROXIMATE
from benchmarks.scale.measuring import Kept
from benchmarks.scale.scale_tables import format_all
from benchmarks.scale.stopwatch import CLOCKS
from index.model.embedder import Embedder
from index.model.in_the_box import find_box

PARTS = ("embedding", "galleries", "catalogue")
SIZES = (10_000, 30_000, 100_000, 1_000_000)
FITTED = (10_000, 30_000)
RECORD = "record.json"


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    sizes: dict[str, Any] = {"type": int, "nargs": "+", "metavar": "ROWS"}
    add("--out", type=Path, required=True, help="folder for everything made")
    add("--part", action="append", choices=PARTS, help="may be repeated; default: all")
    add("--sizes", **sizes, default=list(SIZES), help="galleries to measure (default: %(default)s)")
    add(
        "--fit",
        **sizes,
        default=list(FITTED),
        help="those of them that costs are fitted to (default: %(default)s)",
    )
    add("--catalogue-sizes", **sizes, default=list(SIZES), help="catalogues to measure (default: %(default)s)")
    add("--embedding-sizes", **sizes, default=[400, 1600], help="photos, beside all (default: %(default)s)")
    kinds = "ANN indexes beside flat (default: all)"
    add("--kinds", nargs="*", choices=APPROXIMATE, default=list(APPROXIMATE), help=kinds)
    slow = "the largest gallery that gets hnsw and pq, which take long (default: %(default)s)"
    add("--slow-rows", type=int, default=100_000, help=slow)
    lists = "the largest gallery that gets ivf (default: %(default)s)"
    add("--ivf-rows", type=int, default=100_000, help=lists)
    add("--rounds", type=int, default=3, help="times that a size of --fit is made anew (default: %(default)s)")
    clock = "what seconds are of: `wall`, or on a busy machine `processor` (default: %(default)s)"
    add("--clock", choices=list(CLOCKS), default="wall", help=clock)
    add("--seed", type=int, default=0, help="of everything drawn")
    add("--photos", type=Path, help="folder of photos (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--tables", type=Path, metavar="RECORD", help="measure nothing: print the tables of a record")
    options = parser.parse_args(arguments)
    for name in ("rounds", "slow_rows", "ivf_rows"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if len(set(options.fit)) < 2 or not set(options.fit) <= set(options.sizes):
        parser.error("--fit must be at least two of the --sizes")
    if min(*options.sizes, *options.catalogue_sizes) < 100:
        parser.error("--sizes and --catalogue-sizes must be at least 100 each")
    options.part = options.part or list(PARTS)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("scale"):
        options = parse_options(arguments)
        if options.tables is not None:
            print(format_all(json.loads(options.tables.read_text())))
            return
        record = options.out / RECORD
        results = json.loads(record.read_text())["results"] if record.exists() else {}
        for part in options.part:
            print(part, file=sys.stderr, flush=True)
            results[part] = MEASURES[part](open_kept(options), options)
            write_record(record, settings=vars(options), results=results)
        document = json.loads(record.read_text())
        table = format_all(document)
        (options.out / "table.md").write_text(f"{table}\n")
        print(table)


def open_kept(options: argparse.Namespace) -> Kept:
    """Where measurements with this code on this machine are kept."""
    facts = {"machine": describe_machine(), "code": hash_code("index", "benchmarks/scale", "benchmarks/indexing")}
    chosen = {
        "seed": options.seed,
        "clock": options.clock,
        "kinds": options.kinds,
        "slow": options.slow_rows,
        "ivf": options.ivf_rows,
    }
    folder = options.out / "measured" / digest({**facts, **chosen})
    folder.mkdir(parents=True, exist_ok=True)
    return Kept(folder, clock=options.clock)


def measure_embedding(kept: Kept, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of whole commands by model and number of photos."""
    return kept.embedding(options.embedding_sizes, photos=options.photos, weights=options.weights)


def measure_galleries(kept: Kept, options: argparse.Namespace) -> dict[str, Any]:
    """What galleries took by size: as often as there are rounds where costs are fitted to them, else once; ANN once."""
    measured = {}
    for rows in sorted(set(options.sizes)):
        most = {kind: options.ivf_rows if kind == "ivf" else options.slow_rows for kind in options.kinds}
        kinds = [kind for kind in options.kinds if rows <= most[kind]]
        turns = range(options.rounds if rows in options.fit else 1)
        measured[rows] = [
            kept.gallery(rows, turn=turn, kinds=kinds if turn == 0 else (), seed=options.seed) for turn in turns
        ]
    widths = list(Embedder(find_box(), threads=1).contract.widths.values())
    return {"fit": sorted(options.fit), "widths": widths, "galleries": measured}


def measure_catalogue(kept: Kept, options: argparse.Namespace) -> Mapping[int, Any]:
    """What a catalogue's operations took by its rows."""
    sizes = sorted(set(options.catalogue_sizes))
    return {rows: kept.catalogue(rows, seed=options.seed) for rows in sizes}


MEASURES = {"embedding": measure_embedding, "galleries": measure_galleries, "catalogue": measure_catalogue}


if __name__ == "__main__":
    main()
