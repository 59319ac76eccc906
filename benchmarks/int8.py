"""int8 of model files beside float32: layers left, images/s of ONNX Runtime, and what becomes of the neighbours.

    python -m benchmarks.int8 mobilenet.onnx lite2.onnx --images photos --out bench/int8

Both precisions take turns at batches of 16 on one thread; medians. All is timed by its processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, keep, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.indexing.images import list_images, take_evenly
from export.public import export
from index.arrays import Vectors, centred_cosines
from index.errors import InputError
from index.images.image_files import IMAGE_SUFFIXES, read_image
from index.images.preprocess import Pixels, preprocess_image
from index.model.embedder import Embedder
from index.vectors.exact import search

_BATCH, _NEAREST = 16, 10
HEAD = (
    "model",
    "layers left",
    "MB",
    "export, s of all cores",
    "images/s of a core",
    "of float32",
    "Recall@1",
    "Recall@10",
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="model files in float32")
    parser.add_argument("--images", type=Path, required=True, help="folder whose folders are labels")
    parser.add_argument("--out", type=Path, required=True, help="folder of int8 models and the JSON record")
    parser.add_argument("--count", type=int, default=1000, help="images that query each other")
    options = parser.parse_args(arguments)
    print_machine([])
    options.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for model in options.models:
        path = options.out / f"{model.stem}.json"
        found[model.stem] = keep(path, partial(measure, model, options.images, options.out, count=options.count))
    text = format_table((*HEAD, "nearest in common", "centred cosine"), [_format(*one) for one in found.items()])
    print(text)
    write_record(options.out / "record.json", settings=vars(options), results=found, text=text)


def measure(model: Path, images: Path, out: Path, *, count: int) -> dict[str, Any]:
    """Cost of one model's int8; the images of the export are among those that query each other here."""
    started, lower = time.process_time(), out / f"{model.stem}-int8.onnx"
    try:
        report = export(model, lower, precision="int8", images=images)
    except InputError as error:
        return {"refused": str(error)}
    assert report.measured is not None
    seconds = time.process_time() - started
    costs = {"layers_left": report.measured.float_layers, "bytes": report.bytes, "export_s": seconds}
    preprocess = Embedder(model, runs=False).contract.preprocess
    paths = take_evenly([path for path in list_images(images) if path.suffix in IMAGE_SUFFIXES], count)
    pixels = np.stack([preprocess_image(read_image(path, target_side=preprocess.resize), preprocess) for path in paths])
    labels = np.unique([path.parent.name for path in paths], return_inverse=True)[1]
    files = {"float32": model, "int8": lower}
    found, speeds = _embed_in_turns(files, pixels)
    rows = {name: search(one, one, k=_NEAREST, own=np.arange(len(one))).rows for name, one in found.items()}
    hits = {name: labels[one] == labels[:, None] for name, one in rows.items()}
    lost = {}
    for k in (1, _NEAREST):
        each = hits["float32"][:, :k].any(axis=1).astype(float) - hits["int8"][:, :k].any(axis=1)
        lost[f"recall_at_{k}_lost"] = [float(each.mean()), float(each.std() / np.sqrt(len(each)))]
    common = np.mean([len(np.intersect1d(*pair)) for pair in zip(*rows.values(), strict=True)]) / _NEAREST
    cosine = float(centred_cosines(found["int8"], found["float32"]).mean())
    return {**costs, "images_per_s": speeds, **lost, "in_common": float(common), "centred_cosine": cosine}


def _embed_in_turns(files: dict[str, Path], pixels: Pixels) -> tuple[dict[str, Vectors], dict[str, float]]:
    """Vectors, and the images a second by the median batch after the first."""
    embedders = {name: Embedder(path, threads=1) for name, path in files.items()}
    vectors: dict[str, list[Vectors]] = {name: [] for name in files}
    seconds: dict[str, list[float]] = {name: [] for name in files}
    for start in range(0, len(pixels), _BATCH):
        for name, embedder in embedders.items():
            started = time.process_time()
            vectors[name].append(embedder.embed_batch(pixels[start : start + _BATCH]))
            seconds[name].append(time.process_time() - started)
    whole = slice(1, len(pixels) // _BATCH)
    return (
        {name: np.concatenate(parts) for name, parts in vectors.items()},
        {name: _BATCH / statistics.median(each[whole]) for name, each in seconds.items()},
    )


def _format(name: str, one: dict[str, Any]) -> tuple[str, ...]:
    if "refused" in one:
        return (name, one["refused"], *[""] * 8)
    full, lower = (one["images_per_s"][precision] for precision in ("float32", "int8"))
    lost = [
        f"{-100 * one[name][0]:+.1f} ± {100 * one[name][1]:.1f}" for name in ("recall_at_1_lost", "recall_at_10_lost")
    ]
    return (
        name,
        str(one["layers_left"]),
        f"{one['bytes'] / 1e6:.1f}",
        f"{one['export_s']:.0f}",
        f"{lower:.0f}",
        f"{lower / full:.2f}",
        *lost,
        f"{one['in_common']:.2f}",
        f"{one['centred_cosine']:.4f}",
    )


if __name__ == "__main__":
    with ending_in_words("int8"):
        main()
