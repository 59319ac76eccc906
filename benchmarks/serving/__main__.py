"""How fast does `retrieval serve` answer over HTTP, how much memory does it take, how soon is it there?

photos    5,398 clothing photos: searches by id and by upload from 1, 8, 32 and 128 clients that ask again as soon as
          they are answered; p50, p99, answers/s. Uploads to the same model in int8 too, and Recall@1 of both galleries.
          Beside it, in turns, the model in float32 and its vectors behind a plain FastAPI handler and a plain Gradio
          function, each as people write it and, at 32 clients, in the fastest of four variants tried in a warm-up; and
          decoding alone, d, and the model alone in float32, i: the cores allow 1 / (1/d + 1/i)
vectors   the same with 200,000 vectors, by vector too. Their pictures do not exist; the photos sent to them are of
          another kind than the vectors, so the index finds fewer of their nearest: how many is told below the table
memory    resident and anonymous memory of the server through 100,000 requests of all kinds
start     from the start of the process to /v1/ready, its files in memory and not
workers   searches by id, by upload and thumbnails with --workers 1 and 2, or as --workers says, and their memory

The peers search exactly. The clients share the cores with the server and are a process of their own; what they take
is in the table. A 503 with Retry-After is counted and asked again. The model and the galleries are made once and kept
in OUT; the vectors are random crops of photos (benchmarks.ann.ann_vectors), found in --vectors if they are there.

    python -m benchmarks.serving --out bench/serve --vectors bench/ann
    python -m benchmarks.serving --out bench/serve --part photos --rounds 5
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, find_versions, format_versions, print_machine
from benchmarks.serving.serve_galleries import open_photos, open_quick, open_vectors
from benchmarks.serving.serve_goals import UPLOAD
from benchmarks.serving.serve_memory import measure_memory
from benchmarks.serving.serve_speed import VARIANTS, measure_speed
from benchmarks.serving.serve_start import measure_start
from benchmarks.serving.serve_tables import format_memory, format_speed, format_start, format_workers
from benchmarks.serving.serve_workers import measure_workers

CLIENTS = (1, 8, 32, 128)
INT8 = "int8"
_PACKAGES = ("fastapi", "gradio", "starlette", "uvicorn", "uvloop", "httptools")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=tuple(PARTS))
    add = parser.add_argument
    add("--seconds", type=float, default=6.0, help="of each measurement")
    add("--warm-up", type=float, default=2.0, help="seconds before each that are not counted")
    add("--clients", action="append", type=int, help="may be repeated; default 1, 8, 32, 128")
    without = "leave a peer out, or our model in int8; may be repeated"
    add("--without", action="append", choices=[*VARIANTS, INT8], default=[], help=without)
    add("--workers", action="append", type=int, help="of the part workers; may be repeated; default 1, 2")
    add("--requests", type=int, default=100_000, help="of the part memory")
    add("--starts", type=int, default=7, help="of each kind in the part start")
    add("--alone-images", type=int, default=1024, help="to measure decoding alone and the model alone with")
    add("--photos", type=Path, help="folder of photos (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--model", type=Path, help="an exported model instead of MobileNetV2, PCA-whitened to 64 numbers")
    allowed = (
        "of int8 on the photos that its export measures, some 1,700, where .01 is chance; that of all is told"
    )
    add("--max-recall-drop", type=float, default=0.02, help=f"{allowed} (default: %(default)s)")
    add("--count", type=int, default=200_000, help="vectors of the part vectors")
    add("--vectors", type=Path, help="folder that keeps the vectors of photos (default: --out)")
    options = parse_counts(parser, arguments, "requests", "starts", "alone_images", "count")
    options.clients = sorted(set(options.clients or CLIENTS))
    options.workers = sorted(set(options.workers or (1, 2)))
    if options.workers[0] < 1:
        parser.error("--workers must be at least 1")
    if options.clients[0] < 1:
        parser.error("--clients must be at least 1")
    if options.seconds <= 0 or options.warm_up < 0:
        parser.error("--seconds must be above 0, and --warm-up at least 0")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("serving"):
        options = parse_options(arguments)
        versions = find_versions(_PACKAGES)
        _, tables = run_parts(PARTS, options, versions=versions)
        print_machine([options.seed])
        print(format_versions(versions))
        print("", *tables, sep="\n\n")


PARTS = {
    "photos": Part(
        lambda options: measure_speed(
            photos := open_photos(options),
            options,
            asking=("by id", UPLOAD),
            quick=None if INT8 in options.without else open_quick(options, photos),
        ),
        format_speed,
    ),
    "vectors": Part(
        lambda options: measure_speed(open_vectors(options), options, asking=("by id", "by vector", UPLOAD)),
        format_speed,
    ),
    "memory": Part(lambda options: measure_memory(open_photos(options), options), format_memory),
    "start": Part(lambda options: measure_start(open_photos(options), options), format_start),
    "workers": Part(lambda options: measure_workers(open_photos(options), options), format_workers),
}


if __name__ == "__main__":
    main()
