"""What an epoch of training a whole network costs, beside the loop that people write, and what both then find.

    python -m benchmarks.training.network_epoch --out bench/epoch

Some clothing photos train, the others are searched, each for its nearest other one. Ours is `retrieval train --unfreeze
all`, which holds a part of the photos out and judges by them within its epochs: what counts is the time of an image
that is learnt from. What comes once (decoding, choosing a precision, the head, the choice of weights) is told beside
it. The peers are a DataLoader with torchvision, pytorch-metric-learning's
Proxy-Anchor and AdamW, in float32 as it comes, and in bfloat16 with channels last. All take turns.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.alone import run_alone
from benchmarks.common.kept import digest, hash_code, keep
from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, find_photos, find_weights, print_machine, run_retrieval
from benchmarks.common.tables import format_spread, format_table, spread
from benchmarks.network.train_cells import write_records
from training.data.datasets import Record

OURS, PLAIN, TUNED = "retrieval train", "DataLoader, float32", "DataLoader, bfloat16, channels last"
_LOOP = "benchmarks.training.network_loop"
PART = "epoch"


def split_photos(
    folder: Path, *, images: int, searched: int | None, seed: int
) -> tuple[list[Record], list[Record]]:
    """So many photos at random to train on, and so many others (None: all).

    Raises:
        SystemExit: there are not more than that.
    """
    found = [Record(path, path.parent.name) for path in sorted(folder.rglob("*.jpg"))]
    if len(found) <= images:
        sys.exit(f"{folder}: {len(found):,} photos, of which --images {images:,} leave none to be searched")
    order = np.random.default_rng(seed).permutation(len(found))
    train, test = np.split(order[: None if searched is None else images + searched], [images])
    return [found[row] for row in np.sort(train)], [found[row] for row in np.sort(test)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every contestant in every round; what was measured is kept."""
    train, test = split_photos(
        find_photos(options.photos), images=options.images, searched=options.searched, seed=options.seed
    )
    sizes = {
        name: getattr(options, name) for name in ("images", "searched", "epochs", "side", "batch", "width", "seed")
    }
    kept = options.out / f"kept-{digest([sizes, hash_code('training', 'index', 'benchmarks/training')])}"
    runs: dict[str, list[dict[str, Any]]] = {OURS: [], PLAIN: [], TUNED: []}
    for turn in range(options.rounds):
        for place, (name, found) in enumerate(runs.items()):
            print(f"  round {turn + 1}: {name}", file=sys.stderr, flush=True)
            run = partial(run_ours, train, test, options) if name == OURS else partial(
                run_loop, train, test, options, bfloat16=name == TUNED)  # fmt: skip
            found.append(keep(kept / f"{turn}-{place}.json", run))
    return sizes | {"searched": len(test), "rows": {name: summarise(each) for name, each in runs.items()}}


def run_ours(train: Sequence[Record], test: Sequence[Record], options: argparse.Namespace) -> dict[str, Any]:
    """`retrieval train`, then what is searched by the exported model."""
    out = options.out
    for name in ("run", "gallery"):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / "model.onnx").unlink(missing_ok=True)
    data = {
        name: write_records(records, out / f"{name}-{len(records)}-of-{options.images}-{options.seed}.csv")
        for name, records in (("train", train), ("test", test))
    }
    report = run_retrieval(
        "train", data["train"], "--out", out / "run", "--cache", out / "cache", "--seed", options.seed,
        "--backbone", "mobilenet_v2", "--weights", find_weights(options.weights), "--embedding-dim", options.width,
        "--unfreeze", "all", "--network-epochs", options.epochs, "--network-crop", options.side,
        "--network-batch-size", options.batch, "--no-trial",
    ).document["network"]  # fmt: skip
    run_retrieval("export", out / "run", "--out", out / "model.onnx")
    run_retrieval("index", "build", out / "model.onnx", data["test"], "--out", out / "gallery", "--no-cache")
    scores = run_retrieval("evaluate", out / "gallery").document
    epochs = [each["seconds"] for each in report["epochs"] if each["epoch"]]
    return {
        "epoch_seconds": epochs, "learnt_from": report["trained_on"],
        "once_seconds": report["seconds"] - sum(epochs), "precision": report["precision"],
        "recall_at_1": scores["recall"]["1"],
    }  # fmt: skip


def run_loop(
    train: Sequence[Record], test: Sequence[Record], options: argparse.Namespace, *, bfloat16: bool
) -> dict[str, Any]:
    """The loop in a process of its own."""
    photos = {
        name: [(str(record.path), record.label) for record in records]
        for name, records in (("train", train), ("test", test))
    }
    settings = {
        **photos, "backbone": "mobilenet_v2", "weights": str(find_weights(options.weights)), "width": options.width,
        "side": options.side, "batch": options.batch, "epochs": options.epochs, "workers": options.workers,
        "bfloat16": bfloat16, "seed": options.seed,
    }  # fmt: skip
    found = run_alone(_LOOP, settings=settings, failing="the loop ended with {}", wait_policy="unset")
    return {**found, "learnt_from": len(train)}


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all rounds together."""
    images = runs[0]["learnt_from"]
    return {
        "learnt_from": images,
        "epoch_seconds": spread([seconds for run in runs for seconds in run["epoch_seconds"]]),
        "images_per_second": spread([images / seconds for run in runs for seconds in run["epoch_seconds"]]),
        "recall_at_1": runs[0]["recall_at_1"], "rounds": list(runs),
    }  # fmt: skip


def tabulate(results: Mapping[str, Any]) -> str:
    """A row for each contestant; ratios are of medians."""
    own = results["rows"][OURS]
    rows = [
        [
            name, f"{row['learnt_from']:,}", format_spread(row["epoch_seconds"]),
            format_spread(row["images_per_second"]),
            f"{own['images_per_second']['median'] / row['images_per_second']['median']:.2f}",
            f"{100 * row['recall_at_1']:.2f}",
        ]
        for name, row in results["rows"].items()
    ]  # fmt: skip
    head = [
        "",
        "learns from",
        "seconds an epoch",
        "images/s",
        "ours / it",
        f"Recall@1 after {results['epochs']} epochs, %",
    ]
    once = spread([run["once_seconds"] for run in own["rounds"]])
    precision = own["rounds"][0]["precision"]
    return (
        f"{results['images']:,} photos of {results['side']} pixels, batches of {results['batch']}, MobileNetV2 whole, "
        f"{results['width']}-d; {results['searched']:,} others are searched\n\n{format_table(head, rows)}\n\n"
        f"Ours trained in {precision}, and took {format_spread(once)} s beside its epochs: decoding, once for all "
        "epochs and runs, and the choice of what ships."
    )


PARTS = {PART: Part(measure, tabulate)}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=[PART])
    add = parser.add_argument
    add("--photos", type=Path, help="folder of class folders (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--images", type=int, default=4000, help="that train (default: %(default)s)")
    add("--searched", type=int, help="of the others (default: all)")
    add("--epochs", type=int, default=2, help="of each round (default: %(default)s)")
    add("--side", type=int, default=160, help="pixels of the views that train (default: %(default)s)")
    add("--batch", type=int, default=32, help="images a step (default: %(default)s)")
    add("--width", type=int, default=64, help="of the embedding (default: %(default)s)")
    add("--workers", type=int, default=2, help="of the DataLoader (default: %(default)s)")
    return parse_counts(parser, arguments, "images", "searched", "epochs", "side", "batch", "width")


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("network_epoch"):
        options = parse_options(arguments)
        _, tables = run_parts(PARTS, options)
        print_machine([options.seed])
        print("", *tables, sep="\n\n")


if __name__ == "__main__":
    main()
