"""How fast a frozen backbone's features are in torch and by its graph in other runtimes, and whether they find as much.

Every runtime has turns of two kinds, one after the other: a pass from files to a feature store that is new, as training
makes it, with reading and decoding; and a pass over the same photos as pixels in memory, by the clock and by the
processor's time. Then Recall@1 of all photos drawn, each asking all others by the labels of its folder, and the mean
cosine of the features with torch's in float32, less their mean.

    python -m benchmarks.training.features --out bench/features
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.common.record import ending_in_words, find_photos, find_weights, print_machine, write_record
from benchmarks.common.tables import format_table
from export.precision import centred_cosine, recall_at_1
from index.arrays import normalise_rows
from index.images.image_files import read_image
from index.images.preprocess import Pixels, preprocess_image
from index.model.backends.registry import installed_backends
from index.threads import usable_cores
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import BATCH_IMAGES, Extractor, extract_features, open_store
from training.backbone.freed_memory import keep_freed_memory
from training.backbone.kept_graphs import compute_by_graph, keep_graph
from training.data.datasets import Record, list_dataset
from training.options.backbone_libraries import preprocess_for
from training.options.runtimes import GRAPH_RUNTIMES, TORCH

HEAD = ("runtime", "precision", "images/s from files", "of torch float32", "images/s of pixels", "of torch float32",
        "CPU time, of torch float32", "Recall@1", "centred cosine")  # fmt: skip
PRECISIONS = ("float32", "bfloat16")
PLAIN = (TORCH, "float32")
Contestant = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the photos, let the runtimes take turns, compare and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the record")
    add("--photos", type=Path, help="folder of class folders (default: the clothing of RETRIEVAL_SHARED)")
    add("--limit", type=int, default=1000, help="photos drawn, for Recall@1 (default: %(default)s)")
    add("--timed", type=int, default=128, help="of these that a turn takes (default: %(default)s)")
    add("--rounds", type=int, default=3, help="turns of each (default: %(default)s)")
    add("--backbone", default="mobilenet_v2", help="default: %(default)s")
    add("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    add("--side", type=int, default=224, help="pixels (default: %(default)s)")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.limit, options.timed, options.rounds) < 1:
        parser.error("--limit, --timed and --rounds must be at least 1")
    with ending_in_words("features"):
        records = draw(find_photos(options.photos), options.limit, seed=options.seed)
        print_machine([options.seed])
        results = compare(options, records)
        text = format_table(HEAD, map(_line, results["rows"]))
        print(f"\n{text}")
        write_record(options.out / "record.json", settings=vars(options), results=results, text=text)


def draw(folder: Path, count: int, *, seed: int) -> list[Record]:
    """Photos of a folder in its order, drawn by the seed."""
    records = list_dataset(folder).records
    rows = np.sort(np.random.default_rng(seed).permutation(len(records))[:count])
    return [records[row] for row in rows]


def compare(options: argparse.Namespace, records: Sequence[Record]) -> dict[str, Any]:
    """A row for each runtime and precision, and the seconds that a graph took to write."""
    contestants, graph_seconds = open_all(options)
    config = contestants[PLAIN].preprocess
    paths = [record.path for record in records]
    timed = paths[:: max(1, len(paths) // options.timed)][: options.timed]
    pixels = np.stack(
        [preprocess_image(read_image(path, target_side=config.resize).image, config) for path in timed]
    )
    files: dict[Contestant, list[float]] = {key: [] for key in contestants}
    memory: dict[Contestant, list[float]] = {key: [] for key in contestants}
    spent: dict[Contestant, list[float]] = {key: [] for key in contestants}
    for number in range(options.rounds + 1):
        for key, extractor in contestants.items():
            from_files = _time(lambda extractor=extractor: extract_anew(extractor, timed))[0]
            from_memory, used = _time(lambda extractor=extractor: run_batches(extractor, pixels))
            if number:  # the first round warms up
                files[key].append(from_files)
                memory[key].append(from_memory)
                spent[key].append(used)
    features = {key: extract_anew(extractor, paths) for key, extractor in contestants.items()}
    labels = np.unique([record.label for record in records], return_inverse=True)[1]
    rows = [
        {
            "runtime": key[0], "precision": key[1], "photos": len(records),
            "timed": len(timed), "rate_from_files": len(timed) / statistics.median(files[key]),
            "rate": len(timed) / statistics.median(memory[key]), "of_torch_from_files": _ratio(files, key),
            "of_torch": _ratio(memory, key), "of_torch_cpu": _ratio(spent, key),
            "recall_at_1": recall_at_1(normalise_rows(found), labels), "cosine": centred_cosine(found, features[PLAIN]),
            "seconds_from_files": files[key], "seconds": memory[key], "cpu_seconds": spent[key],
        }
        for key, found in features.items()
    ]  # fmt: skip
    return {"rows": rows, "graph_seconds": graph_seconds}


def open_all(options: argparse.Namespace) -> tuple[dict[Contestant, Extractor], float]:
    """Torch in each precision, and the runtimes that are installed in those that they have; the graph is written."""
    sizes = {"resize": options.side * 8 // 7, "crop": options.side}
    network = load_backbone(options.backbone, str(find_weights(options.weights)), side=options.side)
    seeing = with_features(network, side=options.side)
    preprocess = preprocess_for(options.backbone, **sizes)
    found, seconds = {}, 0.0
    for precision in PRECISIONS:
        extractor = Extractor(seeing, preprocess, device=torch.device("cpu"), precision=precision)
        found[TORCH, precision] = extractor
        with TemporaryDirectory() as folder:
            started = time.perf_counter()
            graph = keep_graph(extractor, cache=Path(folder))
            seconds = time.perf_counter() - started
        for name in [name for name in GRAPH_RUNTIMES if name in installed_backends()]:
            by_graph = compute_by_graph(extractor, name, graph)
            found.setdefault((name, by_graph.precision), by_graph)
    return found, seconds


@keep_freed_memory()
def run_batches(extractor: Extractor, pixels: Pixels) -> None:
    """All pixels in batches as training has them."""
    for start in range(0, len(pixels), BATCH_IMAGES):
        extractor.extract(pixels[start : start + BATCH_IMAGES])


def extract_anew(extractor: Extractor, paths: Sequence[Path]) -> np.ndarray:
    """(N, F) float32 of photos that can be read, through a store that has none of them."""
    with TemporaryDirectory() as folder:
        store = open_store(Path(folder), extractor, views=1)
        found = extract_features(paths, store=store, extractor=extractor, views=1, workers=usable_cores())
        features: np.ndarray = store.load(found.hashes)[:, 0]
    return features


def _time(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock, and of all cores."""
    started, before = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - before


def _ratio(seconds: Mapping[Contestant, Sequence[float]], key: Contestant) -> float:
    return statistics.median(seconds[PLAIN]) / statistics.median(seconds[key])


def _line(row: Mapping[str, Any]) -> list[str]:
    return [
        row["runtime"], row["precision"], f"{row['rate_from_files']:.0f}", f"{row['of_torch_from_files']:.2f}",
        f"{row['rate']:.0f}", f"{row['of_torch']:.2f}", f"{row['of_torch_cpu']:.2f}",
        f"{100 * row['recall_at_1']:.2f}", f"{row['cosine']:.4f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
