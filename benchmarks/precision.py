"""What a precision and a runtime gain in images a second, and what they cost in Recall@1, beside plain torch.

MobileNetV2 as it comes is exported in every precision, measured on the training part of a dataset as `retrieval export`
does; then every runtime runs those that it takes, one after the other, again and again, on photos of the test part,
which are in memory as pixels. Recall@1 is over that part, each photo asking all others. Beside them stands the model in
the box, as it is and in int8; its cosine is with itself as it is.

*Of torch* is over plain torch by the clock, the other column by the processor's time, which others at work change less.

    python -m benchmarks.precision --out bench/precision --dataset groceries-seen --dataset cars
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.network.train_cells import write_records
from benchmarks.noise.splits import list_split
from export.embedding_model import EmbeddingModel
from export.options import MAX_RECALL_DROP, PRECISIONS
from export.precision import centred_cosine, recall_at_1
from index.errors import InputError, ModelFileError
from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.model.backends.names import USUAL_BACKEND
from index.model.backends.registry import installed_backends
from index.model.embedder import Embedder
from index.model.in_the_box import find_box
from index.threads import map_ahead, usable_cores
from retrieval_app import export
from training.backbone.backbones import load_backbone
from training.head.embedding_heads import RawHead
from training.options.backbone_libraries import preprocess_for

HEAD = (
    "dataset",
    "model",
    "runtime",
    "precision",
    "MB",
    "images/s",
    "of torch",
    "of torch, CPU time",
    "Recall@1",
    "centred cosine",
)
TIMED, ROUNDS, BATCH = 256, 5, 16
TORCH, BOX = "torch", "box"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of models and records")
    parser.add_argument("--dataset", action="append", metavar="NAME", help="default: groceries-seen")
    parser.add_argument("--backbone", default="mobilenet_v2", help="default: %(default)s")
    parser.add_argument("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    parser.add_argument("--max-recall-drop", type=float, default=MAX_RECALL_DROP, help="default: %(default)s")
    parser.add_argument("--timed", type=int, default=TIMED, help="photos of a round (default: %(default)s)")
    parser.add_argument("--photos", type=int, default=None, help="of the test part, drawn (default: all)")
    parser.add_argument("--side", type=int, default=224, help="pixels (default: %(default)s)")
    options = parser.parse_args(arguments)
    with ending_in_words("precision"):
        print_machine([0])
        rows = [row for name in options.dataset or ["groceries-seen"] for row in measure(options, name)]
        text = format_table(HEAD, map(_line, rows))
        print(f"\n{text}")
        write_record(options.out / "precision.json", settings=vars(options), results={"rows": rows}, text=text)


def measure(options: argparse.Namespace, dataset: str) -> list[dict[str, Any]]:
    """A row for every runtime and precision of a dataset."""
    split = list_split(dataset, work=options.out / "cache")
    table = write_records(split.train, options.out / "data" / f"{Path(dataset).name}.csv")
    weights = find_weights(options.weights)
    name = Path(dataset).name
    test = split.test
    if options.photos is not None and options.photos < len(test):
        chosen = np.random.default_rng(0).permutation(len(test))[: options.photos]
        test = [test[row] for row in sorted(chosen.tolist())]
    labels = np.unique([record.label for record in test], return_inverse=True)[1]
    files = {
        (options.backbone, precision): options.out / f"{name}-{precision}.onnx" for precision in PRECISIONS
    } | {(BOX, "fp16"): find_box(), (BOX, "int8"): options.out / f"{name}-box-int8.onnx"}
    for (model, precision), path in files.items():
        if not path.exists():
            _export(options, model, precision, path, weights=weights, table=table)
    pixels = {
        model: _read(test, Embedder(files[model, precision], backend=USUAL_BACKEND).contract.preprocess)
        for model, precision in ((options.backbone, "fp32"), (BOX, "fp16"))
    }
    runs = {(options.backbone, TORCH, "fp32"): _open_torch(options, weights)}
    for backend in installed_backends():
        for (model, precision), path in files.items():
            try:
                runs[model, backend, precision] = Embedder(path, backend=backend).embed_batch
            except (InputError, ModelFileError) as error:
                print(f"{backend}, {model} {precision}: {error}")
    vectors = {key: _embed(run, pixels[key[0]]) for key, run in runs.items()}
    seconds: dict[tuple[str, str, str], list[float]] = {key: [] for key in runs}
    spent: dict[tuple[str, str, str], list[float]] = {key: [] for key in runs}  # of all cores, whoever else waits
    for _ in range(ROUNDS):
        for key, run in runs.items():
            started, before = time.perf_counter(), time.process_time()
            _embed(run, pixels[key[0]][: options.timed])
            seconds[key].append(time.perf_counter() - started)
            spent[key].append(time.process_time() - before)
    timed = min(options.timed, len(test))
    rates = {key: timed / statistics.median(found) for key, found in seconds.items()}
    plain = {options.backbone: (options.backbone, TORCH, "fp32"), BOX: (BOX, USUAL_BACKEND, "fp16")}
    return [
        {
            "dataset": dataset, "model": key[0], "runtime": key[1], "precision": key[2], "photos": len(test),
            "bytes": None if key[1] == TORCH else files[key[0], key[2]].stat().st_size, "rate": rates[key],
            "seconds": seconds[key], "of_torch": rates[key] / rates[options.backbone, TORCH, "fp32"],
            "cpu_seconds": spent[key],
            "of_torch_cpu": statistics.median(spent[options.backbone, TORCH, "fp32"]) / statistics.median(spent[key]),
            "recall": 100 * recall_at_1(found, labels), "cosine": centred_cosine(found, vectors[plain[key[0]]]),
        }
        for key, found in vectors.items()
    ]  # fmt: skip


def _export(
    options: argparse.Namespace, model: str, precision: str, path: Path, *, weights: Path | str, table: Path
) -> None:
    asked: dict[str, Any] = {}
    if precision != "fp32":
        asked = {"precision": precision, "images": table, "max_recall_drop": options.max_recall_drop}
    if model == BOX:
        export(BOX, out=path, **asked)
        return
    export(
        out=path, backbone=model, weights=str(weights), crop=options.side, resize=options.side * 8 // 7, **asked
    )


def _read(records: Any, config: PreprocessConfig) -> Pixels:
    def read(path: Path) -> Pixels:
        return preprocess_image(read_image(path, target_side=config.resize).image, config)

    workers = usable_cores()
    return np.stack(list(map_ahead(read, [record.path for record in records], workers=workers, ahead=4 * workers)))


def _open_torch(options: argparse.Namespace, weights: Path | str) -> Callable[[Pixels], np.ndarray]:
    """What people write: the network in float32, without gradients."""
    backbone = load_backbone(options.backbone, str(weights), side=options.side)
    preprocess = preprocess_for(options.backbone, resize=options.side * 8 // 7, crop=options.side)
    model = EmbeddingModel(backbone, RawHead(backbone.feature_dim), preprocess).eval()

    def run(pixels: Pixels) -> np.ndarray:
        with torch.inference_mode():
            found: np.ndarray = model(torch.from_numpy(np.ascontiguousarray(pixels))).numpy()
        return found

    return run


def _embed(run: Callable[[Pixels], np.ndarray], pixels: Pixels) -> np.ndarray:
    return np.concatenate([run(pixels[start : start + BATCH]) for start in range(0, len(pixels), BATCH)])


def _line(row: dict[str, Any]) -> list[str]:
    size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}"
    return [
        row["dataset"], row["model"], row["runtime"], row["precision"], size, f"{row['rate']:.0f}",
        f"{row['of_torch']:.2f}", f"{row['of_torch_cpu']:.2f}", f"{row['recall']:.2f}", f"{row['cosine']:.4f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
