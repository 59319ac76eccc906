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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, find_versions, format_versions, print_machine
from benchmarks.common.tables import format_spread, format_table
from benchmarks.serving.speed import VARIANTS, measure_speed

_PACKAGES = ("fastapi", "gradio", "starlette", "uvicorn", "uvloop", "httptools")


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


def format_speed(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_speed`."""
    gallery, cores = results["gallery"], results["cores"]
    rows = []
    for name, measured in results["cells"].items():
        for clients, cell in measured.items():
            times = ["-" if cell[key] is None else f"{cell[key]:.1f}" for key in ("p50_ms", "p99_ms")]
            counts = [f"{count:,}" for count in (cell["refused"], cell["failed"] + cell["broken"])]
            shares = [f"{100 * cell[key] / cores:.0f} %" for key in ("own_cores", "server_cores")]
            rate, spent = format_spread(cell["per_second"]), f"{cell['core_ms']:.2f}"
            rows.append((name, clients, rate, *times, *counts, *shares, spent))
    head = ["", "clients", "answers/s", "p50, ms", "p99, ms", "503", "failed"]
    head += ["cores: clients", "cores: server", "core-ms an answer"]
    alone = results["alone"]
    allowed = [
        ("decoding and resizing alone, d", format_spread(alone["decoding"])),
        ("model alone, i", format_spread(alone["inference"])),
        ("what the cores allow, 1 / (1/d + 1/i)", f"{results['bound']:.1f}"),
    ]
    title = f"## {gallery['images']:,} {gallery['what']}, {gallery['width']}-d, index {gallery['index']}"
    tables = [format_table(head, rows), format_table(["", "photos/s"], allowed), _format_tried(results["tried"])]
    parts = [title, *tables, _format_agreement(results["agreement"])]
    parts += [_format_recall(results["recall_at_1"]), format_goals(results["goals"])]
    return "\n\n".join(part for part in parts if part)


def _format_tried(tried: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rows = []
    for name, variants in tried.items():
        for each in variants:
            settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in each["settings"].items())
            rows.append((name, settings, f"{each['per_second']:.1f}"))
    return format_table(["warm-up", "settings", "answers/s"], rows) if rows else ""


def _format_agreement(agreement: Mapping[str, Mapping[str, float]]) -> str:
    shares = [
        f"{name} {100 * each['mean']:.1f} % (least {100 * each['least']:.0f} %, {each['photos']} photos)"
        for name, each in agreement.items()
    ]
    return f"Results in common with ours: {'; '.join(shares)}." if shares else ""


def _format_recall(recall: Mapping[str, float]) -> str:
    found = ", ".join(f"{100 * each:.2f} % in {precision}" for precision, each in recall.items())
    return f"Recall@1, each photo asking all others: {found}; the peers' is that of float32." if found else ""


def format_goals(goals: Iterable[Mapping[str, Any]]) -> str:
    """Each goal, its figure, and whether it is met."""
    rows = []
    for goal in goals:
        limit = f"{'at most' if goal['at_most'] else 'at least'} {goal['limit']:g}{goal['unit']}"
        measured = f"{goal['measured']:.2f}{goal['unit']}"
        rows.append((goal["name"], measured, limit, "met" if goal["met"] else "not met"))
    return format_table(["", "measured", "goal", ""], rows)


PARTS = {"photos": Part(measure_speed, format_speed)}


if __name__ == "__main__":
    main()
