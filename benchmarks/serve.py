"""How fast does `retrieval serve` answer over HTTP, how much memory does it take, how soon is it there?

photos    5,398 clothing photos: searches by id and by upload from 1, 8, 32 and 128 clients that ask again as soon as
          they are answered; p50, p99, answers/s. Beside it, in turns, the same model and vectors behind a plain FastAPI
          handler and a plain Gradio function, each as people write it and, at 32 clients, in the fastest of four
          variants tried in a warm-up; and decoding alone, d, and the model alone, i: the cores allow 1 / (1/d + 1/i)
vectors   the same with 200,000 vectors, by vector too. Their pictures do not exist; the photos sent to them are of
          another kind than the vectors, so the index finds fewer of their nearest: how many is told below the table
memory    resident and anonymous memory of the server through 100,000 requests of all kinds
start     from the start of the process to /v1/ready, its files in memory and not

The peers search exactly. The clients share the cores with the server and are a process of their own; what they take
is in the table. A 503 with Retry-After is counted and asked again. The model and the galleries are made once and kept
in OUT; the vectors are random crops of photos (benchmarks.ann_vectors), found in --vectors if they are there.

    python -m benchmarks.serve --out bench/serve --vectors bench/ann
    python -m benchmarks.serve --out bench/serve --part photos --rounds 5
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.record import ending_in_words, print_machine, write_record
from benchmarks.serve_galleries import open_photos, open_vectors
from benchmarks.serve_memory import measure_memory
from benchmarks.serve_speed import VARIANTS, measure_speed
from benchmarks.serve_start import measure_start
from benchmarks.serve_tables import format_memory, format_speed, format_start

CLIENTS = (1, 8, 32, 128)
_PACKAGES = ("fastapi", "gradio", "starlette", "uvicorn", "uvloop", "httptools")
_ENVIRONMENT = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        required=True,
        help="folder for everything made: model, galleries, records, tables, logs",
    )
    add("--part", action="append", choices=list(PARTS), help="may be repeated; default all")
    add("--rounds", type=int, default=3, help="times that each contestant is measured")
    add("--seconds", type=float, default=6.0, help="of each measurement")
    add("--warm-up", type=float, default=2.0, help="seconds before each that are not counted")
    add("--clients", action="append", type=int, help="may be repeated; default 1, 8, 32, 128")
    add("--without", action="append", choices=list(VARIANTS), default=[], help="leave a peer out; may be repeated")
    add("--requests", type=int, default=100_000, help="of the part memory")
    add("--starts", type=int, default=7, help="of each kind in the part start")
    add("--alone-images", type=int, default=1024, help="to measure decoding alone and the model alone with")
    add("--photos", type=Path, help="folder of photos (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--model", type=Path, help="an exported model instead of MobileNetV2, PCA-whitened to 64 numbers")
    add("--count", type=int, default=200_000, help="vectors of the part vectors")
    add("--vectors", type=Path, help="folder that keeps the vectors of photos (default: --out)")
    add("--seed", type=int, default=0, help="of what is asked, of crops")
    options = parser.parse_args(arguments)
    options.clients = sorted(set(options.clients or CLIENTS))
    counts = ("rounds", "requests", "starts", "alone_images", "count")
    for name in counts:
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.clients[0] < 1:
        parser.error("--clients must be at least 1")
    if options.seconds <= 0 or options.warm_up < 0:
        parser.error("--seconds must be above 0, and --warm-up at least 0")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("serve"):
        run(parse_options(arguments))


def run(options: argparse.Namespace) -> None:
    """Measure each part asked for, write its record at once, and print all tables at the end."""
    options.out.mkdir(parents=True, exist_ok=True)
    tables = []
    environment = {name: os.environ.get(name) for name in _ENVIRONMENT}
    for part in options.part or list(PARTS):
        results = PARTS[part](options)
        settings = vars(options) | {"environment": environment, "versions": read_versions()}
        write_record(options.out / f"record-{part}.json", settings=settings, results=results)
        tables.append(TABLES[part](results))
        (options.out / f"table-{part}.md").write_text(f"{tables[-1]}\n")
    print_machine([options.seed])
    print(", ".join(f"{name} {number}" for name, number in read_versions().items()))
    print("", *tables, sep="\n\n")


def read_versions() -> dict[str, str]:
    """Of what serves."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "photos": lambda options: measure_speed(open_photos(options), options, asking=("by id", "by upload")),
    "vectors": lambda options: measure_speed(
        open_vectors(options), options, asking=("by id", "by vector", "by upload")
    ),
    "memory": lambda options: measure_memory(open_photos(options), options),
    "start": lambda options: measure_start(open_photos(options), options),
}
TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "photos": format_speed,
    "vectors": format_speed,
    "memory": format_memory,
    "start": format_start,
}


if __name__ == "__main__":
    main()
