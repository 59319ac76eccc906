"""HTTP throughput and latency of `retrieval serve` beside a plain FastAPI handler and a plain Gradio function.

Searches of the clothing photos by id and by upload, from 1, 8, 32 and 128 clients in a closed loop: p50, p99 and
answers/s. Uploads to the same model in int8 too, with Recall@1 of both galleries. The peers have the same model in
float32 and the same vectors, each as people write it and, at 32 clients, in the fastest of four variants tried in a
warm-up; they search exactly. The bound: decoding alone at d photos/s and the model alone at i photos/s share the cores,
so 1 / (1/d + 1/i). The clients are a process of their own on the same cores; their share is in the table. A 503 with
Retry-After is counted and sent again. The model and the galleries are made once and kept in OUT.

    python -m benchmarks.serving --out bench/serve
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, find_versions, format_versions, print_machine
from benchmarks.serving.speed import VARIANTS, measure_speed
from benchmarks.serving.tables import format_speed

_PACKAGES = ("fastapi", "gradio", "starlette", "uvicorn", "uvloop", "httptools")
PARTS = {"photos": Part(measure_speed, format_speed)}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=tuple(PARTS))
    add = parser.add_argument
    add("--seconds", type=float, default=6.0, help="of each measurement (default: %(default)s)")
    add("--warm-up", type=float, default=2.0, help="seconds before each that are not counted (default: %(default)s)")
    add("--clients", action="append", type=int, help="may be repeated; default 1, 8, 32, 128")
    without = "leave a peer out, or our model in int8; may be repeated"
    add("--without", action="append", choices=[*VARIANTS, "int8"], default=[], help=without)
    alone = "to measure decoding alone and the model alone with (default: %(default)s)"
    add("--alone-images", type=int, default=1024, help=alone)
    add("--photos", type=Path, help="folder of photos (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--model", type=Path, help="an exported model instead of MobileNetV2, PCA-whitened to 64 numbers")
    options = parse_counts(parser, arguments, "alone_images")
    options.clients = sorted(set(options.clients or (1, 8, 32, 128)))
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


if __name__ == "__main__":
    main()
