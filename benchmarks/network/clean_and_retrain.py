"""Is it worth cleaning the labels before a network trains on them? On photos of which every label is known.

The same training three times: on the labels as given, some of them wrong; on those that `retrieval audit --apply` makes
of them without anybody having looked; and on the right ones. Recall@1 on the test part, whose labels nobody touched.

    python -m benchmarks.network.clean_and_retrain --out bench/network --dataset cars --dataset groceries-seen
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.common.tables import format_deviation, format_interval, format_table
from benchmarks.network.train_cells import run_cell, train_on
from benchmarks.network.variants import DEFAULT, NetworkCell
from benchmarks.noise.cells import CLEAN
from benchmarks.noise.reports import lead_in_points, over_seeds
from benchmarks.noise.splits import list_split
from index.labels.decisions import CHANGE, KEEP
from retrieval_app import audit

DATASETS, NOISES = ("cars", "groceries-seen"), ("nearest-class:0.2",)
GIVEN, CLEANED, RIGHT = "given", "cleaned", "right"
HEAD = ("dataset", "labels", "relabelled", "left out", "as given", "cleaned", "all right", "cleaning gains")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of runs, records and tables; that of benchmarks.network")
    add("--dataset", action="append", metavar="NAME", help=f"default: {', '.join(DATASETS)}")
    add("--noise", action="append", metavar="KIND:P", help=f"default: {', '.join(NOISES)}")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--unfreeze", default="last-13")
    add("--epochs", type=int, default=4, help="of the network (default: %(default)s)")
    add("--width", type=int, default=512)
    add("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    add("--cache", type=Path, help="folder of features and unpacked images (default OUT/cache)")
    options = parser.parse_args(arguments)
    with ending_in_words("clean_and_retrain"):
        print_machine(options.seeds)
        rows = []
        for dataset in options.dataset or DATASETS:
            for noise in options.noise or NOISES:
                rows.append(compare(options, dataset, noise))
                print(format_table(HEAD, [_line(rows[-1])]), flush=True)
        text = f"{options.width}-d, Recall@1 in %\n\n{format_table(HEAD, map(_line, rows))}"
        print(f"\n{text}")
        write_record(options.out / "results" / "clean_and_retrain.json", settings=vars(options),
                     results={"rows": rows}, text=text)  # fmt: skip


def compare(options: argparse.Namespace, dataset: str, noise: str) -> dict[str, Any]:
    """One row of the table, over seeds."""
    found: dict[str, list[dict[str, Any]]] = {GIVEN: [], CLEANED: [], RIGHT: []}
    shares = []
    for seed in options.seeds:
        plan = (("unfreeze", options.unfreeze), ("network_epochs", options.epochs))
        given = NetworkCell(dataset, noise, DEFAULT, seed, plan)
        cleaned, share = _train_cleaned(given, options)
        shares.append(share)
        found[CLEANED].append(cleaned)
        found[GIVEN].append(_train(given, options))
        found[RIGHT].append(_train(replace(given, noise=CLEAN), options))
    hits = {name: np.array([cell["hits"] for cell in cells], dtype=np.float64) for name, cells in found.items()}
    gain = lead_in_points(hits[CLEANED], hits[GIVEN], classes=np.array(found[GIVEN][0]["classes"]))
    relabelled, left_out = map(float, np.mean(shares, axis=0))
    recalls = {name: over_seeds([100 * cell["recall"]["1"] for cell in cells]) for name, cells in found.items()}
    return {
        "dataset": dataset, "noise": noise, "relabelled": relabelled, "left_out": left_out, **recalls, "gain": gain,
    }  # fmt: skip


def _train(cell: NetworkCell, options: argparse.Namespace) -> dict[str, Any]:
    return run_cell(
        cell, options.out, weights=find_weights(options.weights), width=options.width, cache=_cache(options)
    )


def _train_cleaned(given: NetworkCell, options: argparse.Namespace) -> tuple[dict[str, Any], tuple[float, float]]:
    """The record, and the shares of labels that the audit of the training on those given changed, and left out."""
    _train(given, options)
    table, cache = options.out / "data" / f"{given.name}_cleaned.csv", _cache(options)
    audited = audit(options.out / "runs" / given.name, apply_to=table, cache=cache)
    verdicts = np.array([image.verdict for image in audited.report.images])
    right = replace(given, noise=CLEAN).options(width=options.width)
    record = train_on(
        table, options.out, f"{given.name}_cleaned", split=list_split(given.dataset, work=cache),
        options={"weights": find_weights(options.weights), **right}, cache=cache,
    )  # fmt: skip
    relabelled, kept = float((verdicts == CHANGE).mean()), float((verdicts == KEEP).mean())
    return record, (relabelled, 1 - relabelled - kept)


def _cache(options: argparse.Namespace) -> Path:
    return options.cache or options.out / "cache"


def _line(row: dict[str, Any]) -> list[str]:
    recalls = [format_deviation(row[name]) for name in (GIVEN, CLEANED, RIGHT)]
    shares = [f"{row['relabelled']:.1%}", f"{row['left_out']:.1%}"]
    return [row["dataset"], row["noise"], *shares, *recalls, format_interval(row["gain"])]


if __name__ == "__main__":
    main()
