"""How near does each stage come to what this machine can do? Both are measured in the same run, and drawn.

read           files/s of photos that are in memory, beside one large file read front to back
decode         bytes to pixels, a thread a core, beside libjpeg-turbo alone
resize         pixels to model inputs, beside a copy of as many bytes (a resize computes, so it cannot be that fast)
model          operations/s of each model, beside the fastest product of matrices in its numbers by ONNX Runtime
index search   one exact query after another among --vectors, beside reading their numbers and using each once
serve upload   answers/s of a record of `benchmarks.serving --part photos`, beside what decoding and the model allowed
               there; without --serving RECORD it is left out

A limit is the fastest of its turns, a stage's rate the median of its own. The roofs of the picture: the slope is the
rate of a copy, the flat lines are products in float32 and int8.

    python -m benchmarks.roofline --out bench/roofline --serving bench/serve/record-photos.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import (
    ending_in_words,
    find_photos,
    find_weights,
    print_machine,
    run_retrieval,
    write_record,
)
from benchmarks.common.tables import format_table
from benchmarks.indexing.index_images import list_images, sample_photos, take_evenly
from benchmarks.roofline import limits, stages
from benchmarks.roofline.operations import count_work
from benchmarks.roofline.picture import draw_roofline
from index.arrays import Vectors
from index.images.image_files import decode_image
from index.images.preprocess import PreprocessConfig, preprocess_image
from index.model.embedder import Embedder
from index.model.in_the_box import find_box

CALIBRATED = 64  # photos
Turns = Mapping[str, Callable[[], float]]
COPY, SCAN, READ, JPEG, FP32, INT8 = "copy", "scan", "sequential read", "bare JPEG", "gemm fp32", "gemm int8"


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the record, the table and the picture")
    add("--photos", type=Path, help="folder of JPEGs (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--images", type=int, default=256, help="photos of each turn (default: %(default)s)")
    own = "own .onnx file; may be repeated (default: the box, as it is and in int8, and MobileNetV2)"
    add("--model", type=Path, action="append", help=own)
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--vectors", type=int, default=100_000, help="that are searched (default: %(default)s)")
    add("--width", type=int, default=128, help="of each (default: %(default)s)")
    add("--array-mib", type=int, default=256, help="MiB that are copied, and read (default: %(default)s)")
    add("--seconds", type=float, default=1.0, help="of each turn (default: %(default)s)")
    add("--rounds", type=int, default=3, help="turns of each (default: %(default)s)")
    add("--serving", type=Path, help="a record of benchmarks.serving")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    for name in ("images", "vectors", "width", "array_mib", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    with ending_in_words("roofline"):
        options.out.mkdir(parents=True, exist_ok=True)
        results = measure(options)
        table = format_stages(results)
        print_machine([options.seed])
        print(f"\n{table}")
        draw_roofline(results, options.out / "roofline.png")
        write_record(options.out / "record.json", settings=vars(options), results=results, text=table)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every limit and stage in turns, and how near they are."""
    paths = take_evenly(list_images(find_photos(options.photos)), options.images)
    data = [path.read_bytes() for path in paths]
    opened = {name: Embedder(path) for name, path in find_models(options).items()}
    config = next(iter(opened.values())).contract.preprocess
    images = [decode_image(one, name="photo", target_side=config.resize) for one in data]
    vectors, seconds = stages.make_vectors(options.vectors, options.width, seed=options.seed), options.seconds
    machine = _list_limits(options, data, config, vectors)
    own: dict[str, Callable[[], float]] = {
        "read": lambda: stages.measure_reading(paths, seconds=seconds),
        "decode": lambda: stages.measure_decoding(data, config, seconds=seconds),
        "resize": lambda: stages.measure_resizing(images, config, seconds=seconds),
        "index search": lambda: stages.measure_search(vectors, seconds=seconds),
    }
    batches = {name: _make_batch(model, data) for name, model in opened.items()}
    for name, model in opened.items():
        own[f"model: {name}"] = partial(stages.measure_model, model, batches[name], seconds=seconds)
    turns = take_turns({**machine, **own}, rounds=options.rounds)
    reached = {name: max(turns[name]) for name in machine}
    rates = {name: statistics.median(turns[name]) for name in own}
    moved = {
        "read": sum(map(len, data)) / len(data),
        "resize": statistics.mean(3 * image.width * image.height for image in images) + 3 * config.crop**2,
        "index search": vectors.nbytes,
    }
    rows = judge_moving(rates, reached, moved)
    rows += [judge_model(name, model, rates, reached, batch=len(batches[name])) for name, model in opened.items()]
    rows.append(judge_serving(options.serving))
    return {"limits": reached, "stages": rows, "turns": turns}


def find_models(options: argparse.Namespace) -> dict[str, Path]:
    """Those of the user, or three: what is missing is written."""
    if options.model:
        return {path.stem: path for path in options.model}
    photos, int8, mobilenet = (
        find_photos(options.photos),
        options.out / "box-int8.onnx",
        options.out / "mobilenet_v2.onnx",
    )
    if not int8.exists():
        few = sample_photos(photos, options.out / "calibration", count=CALIBRATED)
        given = (
            "--precision",
            "int8",
            "--images",
            few,
            "--max-recall-drop",
            1,
        )  # whose rate is measured, not its Recall@1
        run_retrieval("export", "box", *given, "--out", int8)
    if not mobilenet.exists():
        weights = find_weights(options.weights)
        run_retrieval("export", "--backbone", "mobilenet_v2", "--weights", weights, "--out", mobilenet)
    return {"box": find_box(), "box, int8": int8, "MobileNetV2": mobilenet}


def _list_limits(
    options: argparse.Namespace, data: Sequence[bytes], config: PreprocessConfig, vectors: Vectors
) -> Turns:
    mib, seconds = options.array_mib, options.seconds
    return {
        COPY: lambda: limits.measure_copy(mib=mib, seconds=seconds),
        SCAN: lambda: limits.measure_scan(vectors, seconds=seconds),
        READ: lambda: limits.measure_sequential_read(options.out / "large", mib=mib, seconds=seconds),
        JPEG: lambda: stages.measure_bare_decoding(data, config, seconds=seconds),
        FP32: lambda: limits.measure_gemm("fp32", seconds=seconds)["operations_per_second"],
        INT8: lambda: limits.measure_gemm("int8", seconds=seconds)["operations_per_second"],
    }


def _make_batch(model: Embedder, data: Sequence[bytes]) -> np.ndarray:
    config = model.contract.preprocess
    chosen = [data[number % len(data)] for number in range(model.usual_batch)]
    return np.stack([
        preprocess_image(decode_image(one, name="photo", target_side=config.resize), config) for one in chosen
    ])  # fmt: skip


def take_turns(turns: Turns, *, rounds: int) -> dict[str, list[float]]:
    """What each gave in each round."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, measure_once in turns.items():
            found[name].append(measure_once())
    return found


def judge_moving(
    rates: Mapping[str, float], reached: Mapping[str, float], moved: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The stages whose limit is a rate of bytes, or, of decoding, of images."""
    rows = []
    for stage, limit in (("read", READ), ("decode", JPEG), ("resize", COPY), ("index search", SCAN)):
        most = reached[limit] / moved.get(stage, 1.0)
        rows.append(_row(stage, rates[stage], most, limit, "queries/s" if stage == "index search" else "images/s"))
    return rows


def judge_model(
    name: str, model: Embedder, rates: Mapping[str, float], reached: Mapping[str, float], *, batch: int
) -> dict[str, Any]:
    """A model beside the products in its numbers, with its place under the roofs."""
    kind = INT8 if model.contract.precision == "int8" else FP32
    work = count_work(model.path, batch=batch, precision=model.contract.precision)
    stage, operations = f"model: {name}", work.operations / batch
    row = _row(stage, rates[stage], reached[kind] / operations, kind, "images/s")
    place = {
        "operations_per_byte": work.operations / work.bytes_moved,
        "operations_per_second": rates[stage] * operations,
    }
    return {**row, **place, "operations": operations}


def judge_serving(record: Path | None) -> dict[str, Any]:
    """Uploads at the most clients of a record, beside what decoding and the model alone allowed in that run."""
    if record is None:
        return {"stage": "serve upload", "rate": None, "limit": None, "limited_by": "not run", "of_limit": None}
    results = json.loads(record.read_text())["results"]
    cells = results["cells"]["by upload"]
    rate = max(cell["per_second"]["median"] for cell in cells.values())
    return _row("serve upload", rate, results["bound"], "decoding and the model alone", "answers/s")


def _row(stage: str, rate: float, limit: float, limited_by: str, unit: str) -> dict[str, Any]:
    return {
        "stage": stage, "rate": rate, "limit": limit, "limited_by": limited_by, "unit": unit, "of_limit": rate / limit,
    }  # fmt: skip


def format_stages(results: Mapping[str, Any]) -> str:
    """Markdown: the stages, and the limits."""
    rows = [_format_row(row) for row in results["stages"]]
    found = results["limits"]
    machine = [
        ["copy, read and written", f"{found[COPY] / 1e9:.1f} GB/s"],
        ["the vectors, read and used once", f"{found[SCAN] / 1e9:.1f} GB/s"],
        ["one large file, in memory", f"{found[READ] / 1e9:.2f} GB/s"],
        ["JPEG by libjpeg-turbo alone", f"{found[JPEG]:,.0f} images/s"],
        ["product in float32", f"{found[FP32] / 1e9:,.0f} GFLOP/s"],
        ["product in int8", f"{found[INT8] / 1e9:,.0f} GOP/s"],
    ]
    head = ["stage", "rate", "limit", "set by", "rate / limit"]
    return f"{format_table(head, rows)}\n\n{format_table(['the machine', 'at most'], machine)}"


def _format_row(row: Mapping[str, Any]) -> list[str]:
    if row["rate"] is None:
        return [row["stage"], "not run", "", "", ""]
    rate = f"{row['rate']:,.1f} {row['unit']}"
    return [row["stage"], rate, f"{row['limit']:,.1f}", row["limited_by"], f"{row['of_limit']:.2f}"]


if __name__ == "__main__":
    main()
