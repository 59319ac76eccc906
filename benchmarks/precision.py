"""What a precision and a runtime gain in images a second, and what they cost in Recall@1, beside plain torch.

MobileNetV2 as it comes is exported in every precision, measured on the training part of a dataset as `retrieval export`
does; then every runtime runs those that it takes, one after the other, again and again, on photos of the test part,
which are in memory as pixels. Recall@1 is over that part, each photo asking all others.

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
from index.errors import MissingDependencyError, ModelFileError
from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.model.backends.registry import BACKENDS
from index.model.embedder import Embedder
from index.threads import map_ahead, usable_cores
from retrieval_app import export
from training.backbone.backbones import load_backbone
from training.head.embedding_heads import RawHead
from training.options.backbone_libraries import preprocess_for

HEAD = ("dataset", "runtime", "precision", "MB", "images/s", "of torch", "Recall@1", "centred cosine")
TIMED, ROUNDS, BATCH = 256, 5, 16
TORCH = "torch"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of models and records")
    parser.add_argument("--dataset", action="append", metavar="NAME", help="default: groceries-seen")
    parser.add_argument("--backbone", default="mobilenet_v2", help="default: %(default)s")
    parser.add_argument("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    parser.add_argument("--max-recall-drop", type=float, default=MAX_RECALL_DROP, help="default: %(default)s")
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
    models = {name: options.out / f"{Path(dataset).name}-{name}.onnx" for name in PRECISIONS}
    for name, path in models.items():
        if not path.exists():
            asked = (
                {}
                if name == "fp32"
                else {
                    "precision": name,
                    "images": table,
                    "max_recall_drop": options.max_recall_drop,
                }
            )
            export(out=path, backbone=options.backbone, weights=str(weights), crop=options.side,
                   resize=options.side * 8 // 7, **asked)  # fmt: skip
    config = Embedder(models["fp32"]).contract.preprocess
    pixels = _read(split.test, config)
    labels = np.unique([record.label for record in split.test], return_inverse=True)[1]
    runs = {(TORCH, "fp32"): _open_torch(options, weights)}
    for backend in BACKENDS:
        for name, path in models.items():
            try:
                runs[backend, name] = Embedder(path, backend=backend).embed_batch
            except (MissingDependencyError, ModelFileError) as error:
                print(f"{backend}, {name}: {error}")
    vectors = {key: _embed(run, pixels) for key, run in runs.items()}
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(ROUNDS):
        for key, run in runs.items():
            started = time.perf_counter()
            _embed(run, pixels[:TIMED])
            seconds[key].append(time.perf_counter() - started)
    timed = min(TIMED, len(pixels))
    rates = {key: timed / statistics.median(found) for key, found in seconds.items()}
    return [
        {
            "dataset": dataset, "runtime": runtime, "precision": name,
            "bytes": None if runtime == TORCH else models[name].stat().st_size, "rate": rates[runtime, name],
            "seconds": seconds[runtime, name], "of_torch": rates[runtime, name] / rates[TORCH, "fp32"],
            "recall": 100 * recall_at_1(found, labels), "cosine": centred_cosine(found, vectors[TORCH, "fp32"]),
        }
        for (runtime, name), found in vectors.items()
    ]  # fmt: skip


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
        row["dataset"], row["runtime"], row["precision"], size, f"{row['rate']:.0f}", f"{row['of_torch']:.2f}",
        f"{row['recall']:.2f}", f"{row['cosine']:.4f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
