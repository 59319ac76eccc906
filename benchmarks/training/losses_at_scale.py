"""Proxy-Anchor and Smooth Proxy-Anchor with very many classes: time, memory and agreement with other code.

    python -m benchmarks.training.losses_at_scale --out bench/losses

Forward and backward of a batch. Every contestant runs in a process of its own, and they take turns; the table has
medians, and the least and the most. Memory is the most that is resident and not of a file, above what was there with
the inputs: gradients count.
On a busy machine the processor time tells more than the clock. A command that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.processes import run_alone
from benchmarks.common.record import digest, hash_code, keep, print_machine
from benchmarks.common.tables import format_spread, format_table, spread
from benchmarks.training.loss_contestants import PROXY_ANCHOR, SMOOTH

MIB = 1 << 20
_CONTESTANTS = "benchmarks.training.loss_contestants"
CONTESTANTS: Mapping[str, Sequence[str]] = {"proxy-anchor": list(PROXY_ANCHOR), "smooth": list(SMOOTH)}


def measure(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every contestant in every round, by name, and how far each is from the first; what was measured is kept."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS[part]}
    sizes = {name: getattr(options, name) for name in ("batch", "classes", "width", "seed", "repeats")}
    folder = options.out / f"kept-{digest([sizes, hash_code('training/losses', 'benchmarks/training')])}"
    gradients = {name: folder / f"gradients-{part}-{place}.npz" for place, name in enumerate(found)}
    for turn in range(options.rounds):
        for place, (name, runs) in enumerate(found.items()):
            print(f"  {part}, round {turn + 1}: {name}", file=sys.stderr, flush=True)
            settings = {"part": part, "contestant": name, "gradients": str(gradients[name]), **sizes}
            alone = partial(run_alone, _CONTESTANTS, settings=settings, failing="it ended with {}")
            runs.append(keep(folder / f"{part}-{turn}-{place}.json", alone))
    rows = {name: summarise(runs) for name, runs in found.items()}
    for name, row in rows.items():
        row["apart"] = compare(gradients[name], gradients[next(iter(rows))])
    return {"part": part, **sizes, "rows": rows}


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all rounds together."""
    return {
        "seconds": spread([statistics.median(run["seconds"]) for run in runs]),
        "cpu_seconds": spread([statistics.median(run["cpu_seconds"]) for run in runs]),
        "peak_bytes": spread([run["peak_bytes"] for run in runs]),
        "value": runs[0]["value"],
        "rounds": list(runs),
    }


def compare(path: Path, first: Path) -> dict[str, float]:
    """How far the gradients in one file are from those in another, by their length."""
    with np.load(path) as found, np.load(first) as wanted:
        return {
            name: float(np.linalg.norm(found[name] - wanted[name]) / np.linalg.norm(wanted[name])) for name in found
        }


def tabulate(results: Mapping[str, Any]) -> str:
    """A row for each contestant, with ratios of the medians to those of the first."""
    rows, own = [], next(iter(results["rows"].values()))
    for name, row in results["rows"].items():
        cells = [name, format_spread(row["seconds"], digits=2)]
        cells += [f"{_times(row, own, key):.2f}" for key in ("seconds", "cpu_seconds")]
        cells.append(f"{row['peak_bytes']['median'] / MIB:,.0f}")
        apart = row["apart"]
        cells += [f"{_times(row, own, 'peak_bytes'):.1f}", f"{row['value']:.6f}"]
        rows.append([*cells, f"{apart['embeddings']:.0e}, {apart['proxies']:.0e}"])
    head = ["", "seconds", "of ours", "processor time, of ours", "peak MiB", "of ours", "loss"]
    head.append("gradients apart (embeddings, proxies)")
    sizes = f"{results['classes']:,} classes, batch {results['batch']}, {results['width']}-d"
    return f"{results['part']}: {sizes}\n\n{format_table(head, rows)}"


def _times(row: Mapping[str, Any], own: Mapping[str, Any], key: str) -> float:
    ratio: float = row[key]["median"] / own[key]["median"]
    return ratio


PARTS = {part: Part(lambda options, part=part: measure(part, options), tabulate) for part in CONTESTANTS}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=512, help="of the embedding (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="in each process, after one that does not count")
    return parse_counts(parser, arguments, "batch", "classes", "width", "repeats")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    _, tables = run_parts(PARTS, options)
    print_machine([options.seed])
    print("", *tables, sep="\n\n")


if __name__ == "__main__":
    main()
