"""What a GPU does here, beside its own limits: training whole networks, losses at many classes, embedding, searching.

The limits come first: a copy within the device's memory, and matrix products of random numbers. Times are medians by
the device's own clock. `--device cpu` runs the same on the processor, to try the command where there is no GPU.

    python -m benchmarks.gpu --out bench/gpu
    python -m benchmarks.gpu --out bench/gpu --part training --dataset cars --network mobilenet_v2 --epochs 30
    python -m benchmarks.gpu --out bench/gpu --part losses --classes 1000000
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, print_machine
from benchmarks.gpu.gpu_limits import Limits, describe_device, measure_limits, tabulate_limits
from benchmarks.gpu.gpu_losses import METHODS, measure_losses, tabulate_losses
from benchmarks.gpu.gpu_rates import measure_embedding, measure_search, tabulate_embedding, tabulate_search
from benchmarks.gpu.gpu_training import measure_training, tabulate_training
from index.threads import usable_cores
from training.options.machine import PRECISIONS, resolve_device


def tell_limits(limits: Limits, options: argparse.Namespace) -> dict[str, Any]:
    """What was measured before the other parts."""
    return {**limits.to_json(), "device": describe_device(options.computes_on)}


PARTS: Mapping[str, Part] = {
    "limits": Part(tell_limits, tabulate_limits),
    "losses": Part(measure_losses, tabulate_losses),
    "embedding": Part(measure_embedding, tabulate_embedding),
    "search": Part(measure_search, tabulate_search),
    "training": Part(measure_training, tabulate_training),
}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=tuple(PARTS))
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    add("--side", type=int, default=8192, help="of the matrices that are multiplied (default: %(default)s)")
    add("--copied-mib", type=int, default=4096, help="that are copied (default: %(default)s)")
    add("--method", action="append", help=f"a loss, of `losses` (default: {', '.join(METHODS)})")
    add("--classes", type=int, default=100_000, help="of `losses` (default: %(default)s)")
    add("--batch", type=int, default=180, help="of `losses` (default: %(default)s)")
    add("--width", type=int, default=512, help="of embeddings (default: %(default)s)")
    networks = "NAME or NAME=WEIGHTS, of `embedding` and `training`; without weights mobilenet_v2 has those of"
    add(
        "--network",
        action="append",
        help=f"{networks} RETRIEVAL_SHARED, others none (default: mobilenet_v2, resnet50)",
    )
    add("--embedding-batch", type=int, nargs="+", default=[32, 64, 256], help="images (default: 32 64 256)")
    add("--model", type=Path, help="of `embedding` in ONNX Runtime (default: the model in the box)")
    add("--vectors", type=int, default=1_000_000, help="that are searched (default: %(default)s)")
    add("--queries", type=int, nargs="+", default=[1, 256, 4096], help="at a time (default: 1 256 4096)")
    add("--dataset", action="append", help="of `training`, as of benchmarks.noise (default: cars, tiny-imagenet)")
    add("--max-per-class", type=int, help="images of a class that train (default: all)")
    add("--resize", type=int, default=256, help="pixels a side of decoded images (default: %(default)s)")
    add("--crop", type=int, default=224, help="pixels a side of what networks see (default: %(default)s)")
    add("--network-crop", type=int, help="in training (default: as `retrieval train`)")
    add("--network-batch", type=int, default=128, help="images a step (default: %(default)s)")
    add("--epochs", type=int, default=10, help="of the network (default: %(default)s)")
    add("--precision", choices=PRECISIONS, default="auto", help="of `training` (default: the faster one)")
    add("--workers", type=int, default=usable_cores(), help="threads that decode and draw (default: all cores)")
    counts = ("side", "copied_mib", "classes", "batch", "width", "vectors", "resize", "crop", "epochs", "workers")
    options = parse_counts(parser, arguments, *counts)
    options.network = options.network or ["mobilenet_v2", "resnet50"]
    options.dataset = options.dataset or ["cars", "tiny-imagenet"]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    with ending_in_words("gpu"):
        options.computes_on = resolve_device(options.device)
        print_machine([options.seed])
        described = describe_device(options.computes_on)
        print(", ".join(f"{name} {value}" for name, value in described.items()))
        limits = measure_limits(options.computes_on, side=options.side, copied_bytes=options.copied_mib << 20)
        _, tables = run_parts(PARTS, options, limits, device=described)
        print("", *tables, sep="\n\n")


if __name__ == "__main__":
    main()
