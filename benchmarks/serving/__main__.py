"""HTTP throughput and latency of `retrieval serve` beside a plain FastAPI handler.

Searches of the clothing photos by id and by upload, from some numbers of clients in a closed loop: p50, p99 and
answers/s. Uploads to the same model in int8 too, with Recall@1 of both galleries. The peer has the same model in
float32 and the same vectors, as people write it and, at 32 clients, in the fastest of four variants tried in a warm-up;
it searches exactly. The clients are a process of their own on the same cores; their share is in the table. A 503 with
Retry-After is counted and sent again. The model and the galleries are made once and kept in OUT.

    python -m benchmarks.serving --out bench/serve
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.record import ending_in_words, find_versions, format_versions, print_machine, write_record
from benchmarks.common.tables import format_spread, format_table
from benchmarks.serving.speed import measure_speed

_PACKAGES = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for everything made")
    add("--rounds", type=int, default=3, help="times that each contestant is measured (default: %(default)s)")
    add("--seed", type=int, default=0, help="of everything random")
    add("--seconds", type=float, default=6.0, help="of each measurement (default: %(default)s)")
    add("--warm-up", type=float, default=2.0, help="seconds before each that are not counted (default: %(default)s)")
    add("--clients", nargs="+", type=int, default=[1, 32], help="default: 1 32")
    add("--no-int8", action="store_false", dest="int8", help="without our model in int8")
    add("--photos", type=Path, help="folder of photos (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--model", type=Path, help="an exported model instead of MobileNetV2, PCA-whitened to 64 numbers")
    options = parser.parse_args(arguments)
    if min(options.rounds, *options.clients) < 1:
        parser.error("--rounds and --clients must be at least 1")
    return options


@ending_in_words("serving")
def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    versions = find_versions(_PACKAGES)
    results = measure_speed(options)
    text = format_speed(results)
    print_machine([options.seed])
    print(f"{format_versions(versions)}\n\n{text}")
    write_record(
        options.out / "serving.json", settings=vars(options) | {"versions": versions}, results=results, text=text
    )


def format_speed(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_speed`."""
    gallery, cores = results["gallery"], results["cores"]
    rows = []
    for name, measured in results["cells"].items():
        for clients, cell in measured.items():
            times = ["-" if cell[key] is None else f"{cell[key]:.1f}" for key in ("p50_ms", "p99_ms")]
            statuses = ", ".join(f"{status}: {count:,}" for status, count in cell["statuses"].items())
            shares = [f"{100 * cell[key] / cores:.0f} %" for key in ("own_cores", "server_cores")]
            rate, spent = format_spread(cell["per_second"]), f"{cell['core_ms']:.2f}"
            rows.append((name, clients, rate, *times, statuses, *shares, spent))
    head = ["", "clients", "answers/s", "p50, ms", "p99, ms", "by status"]
    head += ["cores: clients", "cores: server", "core-ms an answer"]
    tried = [(*map(str, each["settings"].values()), f"{each['per_second']:.1f}") for each in results["tried"]]
    title = f"## {gallery['images']:,} {gallery['what']}, {gallery['width']}-d, index {gallery['index']}"
    parts = [title, format_table(head, rows), format_table(["handler", "waiting threads", "answers/s"], tried)]
    shared = [f"{name} {100 * each['mean']:.1f} %" for name, each in results["agreement"].items()]
    parts.append(f"Results in common with ours: {'; '.join(shared)}.")
    recall = [f"{100 * each:.2f} % in {precision}" for precision, each in results["recall_at_1"].items()]
    if recall:
        parts.append(f"Recall@1, each photo asking all others: {', '.join(recall)}.")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
