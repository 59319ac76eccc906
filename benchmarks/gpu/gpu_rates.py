"""Images embedded a second, by torch and by ONNX Runtime, and exact searches a second, beside the device's limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common.record import find_weights
from benchmarks.common.tables import format_table
from benchmarks.gpu.gpu_limits import Limits, time_runs
from index.errors import MissingDependencyError
from index.faiss_library import import_faiss
from index.images.preprocess import Pixels
from index.model.embedder import Embedder
from index.model.in_the_box import find_box
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.options.backbone_libraries import preprocess_for

STAND_IN = "torch: product and topk, a stand-in for the limit"
_K = 10


def measure_embedding(limits: Limits, options: argparse.Namespace) -> dict[str, Any]:
    """Every network in both precisions and every batch size, from pixels in the host's memory to features."""
    rows = []
    for network in options.network:
        name, _, weights = network.partition("=")
        backbone = load_backbone(name, _find(weights, name), side=options.crop)
        preprocess = preprocess_for(name, resize=options.crop, crop=options.crop, view="crop")
        for precision in ("float32", "bfloat16"):
            extractor = Extractor(backbone, preprocess, device=options.computes_on, precision=precision)
            for batch in options.embedding_batch:
                pixels = _draw_pixels(batch, side=options.crop, seed=options.seed)
                rows.append({
                    "what": f"torch, {name}", "precision": precision, "batch": batch,
                    **_time_torch(extractor, pixels, limits, precision=precision),
                })  # fmt: skip
    for batch in options.embedding_batch:
        rows.append(_time_model(options.model or find_box(), batch=batch, seed=options.seed))
    return {"crop": options.crop, "rows": rows}


def _find(weights: str, name: str) -> str:
    if weights:
        return weights
    return str(find_weights()) if name == "mobilenet_v2" else "none"


def _draw_pixels(count: int, *, side: int, seed: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def _time_torch(extractor: Extractor, pixels: Pixels, limits: Limits, *, precision: str) -> dict[str, Any]:
    seconds = time_runs(lambda: extractor.extract(pixels), device=extractor.device)
    with FlopCounterMode(display=False) as counter:
        extractor.extract(pixels)
    number_format = "tf32" if precision == "float32" and extractor.device.type == "cuda" else precision
    least = counter.get_total_flops() / limits.flops_per_s[number_format]
    return {"images_per_s": len(pixels) / seconds, "of_arithmetic": least / seconds}


def _time_model(path: Path, *, batch: int, seed: int) -> dict[str, Any]:
    """The model as galleries run it: the call returns when its vectors are in the host's memory."""
    model = Embedder(path)
    pixels = _draw_pixels(batch, side=model.contract.preprocess.crop, seed=seed)
    seconds = time_runs(lambda: model.embed_batch(pixels), device=torch.device("cpu"))
    return {"what": f"{model.runtime}, {model.contract.backbone}", "precision": "as exported", "batch": batch,
            "images_per_s": batch / seconds, "of_arithmetic": None, "on_gpu": model.on_gpu}  # fmt: skip


def measure_search(limits: Limits, options: argparse.Namespace) -> dict[str, Any]:
    """Exact search of the 10 nearest by every engine that is here, for each number of queries at a time."""
    generator = np.random.default_rng(options.seed)
    base = _draw_rows(generator, options.vectors, options.width)
    asked = _draw_rows(generator, max(options.queries), options.width)
    size_bytes, rows, truth = base.nbytes, [], None
    for name, search in _list_engines(base, device=options.computes_on):
        for count in options.queries:
            found = search(asked[:count])
            truth = found if truth is None or len(truth) < count else truth
            seconds = time_runs(
                lambda search=search, count=count: search(asked[:count]), device=torch.device("cpu")
            )
            flops = 2.0 * base.size * count
            floor = limits.floor_s(size_bytes=size_bytes, flops=flops, number_format="float32")
            rows.append({
                "engine": name, "queries": count, "per_s": count / seconds, "of_limit": floor / seconds,
                "agrees": _agree(found, truth[:count]),
            })  # fmt: skip
    faiss = _find_faiss()
    lacks = (
        "it is not installed" if faiss is None else "" if faiss.get_num_gpus() else "the installed one finds none"
    )
    missing = [f"faiss on a GPU: {lacks}"] if lacks else []
    return {"vectors": len(base), "width": options.width, "k": _K, "rows": rows, "not_run": missing}


def _find_faiss() -> Any | None:
    try:
        return import_faiss()
    except MissingDependencyError:
        return None


def _draw_rows(generator: np.random.Generator, count: int, width: int) -> np.ndarray:
    rows = generator.standard_normal((count, width), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _list_engines(
    base: np.ndarray, *, device: torch.device
) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """faiss on the CPU and on a GPU where it finds one, and what torch does on the device."""
    if (faiss := _find_faiss()) is not None:
        yield from _list_faiss(faiss, base)
    stored = torch.from_numpy(base).to(device)

    def search(rows: np.ndarray) -> np.ndarray:
        cosines = torch.from_numpy(rows).to(device) @ stored.T
        return cosines.topk(_K, dim=1).indices.cpu().numpy()

    yield STAND_IN, search


def _list_faiss(faiss: Any, base: np.ndarray) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    flat = faiss.IndexFlatIP(base.shape[1])
    flat.add(base)
    yield (
        f"faiss {faiss.__version__} Flat, {faiss.omp_get_max_threads()} threads",
        lambda rows: flat.search(rows, _K)[1],
    )
    if faiss.get_num_gpus():
        on_gpu = faiss.index_cpu_to_all_gpus(flat)
        yield f"faiss {faiss.__version__} Flat on the GPU", lambda rows: on_gpu.search(rows, _K)[1]


def _agree(found: np.ndarray, truth: np.ndarray) -> float:
    """The share of the nearest that both found."""
    return float(np.mean([len(np.intersect1d(a, b)) / _K for a, b in zip(found, truth, strict=True)]))


def tabulate_embedding(results: Mapping[str, Any]) -> str:
    """A row for each network, precision and batch."""
    rows = [
        [
            row["what"], row["precision"], str(row["batch"]), f"{row['images_per_s']:.0f}",
            "" if row["of_arithmetic"] is None else f"{100 * row['of_arithmetic']:.1f} %",
        ]
        for row in results["rows"]
    ]  # fmt: skip
    return format_table(["what", "precision", "batch", "images/s", "of the limit of matrix products"], rows)


def tabulate_search(results: Mapping[str, Any]) -> str:
    """A row for each engine and number of queries."""
    rows = [
        [row["engine"], str(row["queries"]), f"{row['per_s']:.0f}", f"{100 * row['of_limit']:.0f} %",
         f"{100 * row['agrees']:.2f} %"]
        for row in results["rows"]
    ]  # fmt: skip
    title = f"the {results['k']} nearest of {results['vectors']:,} x {results['width']}"
    table = format_table(["engine", "queries at a time", "queries/s", "of the limit", "same as the first"], rows)
    return "\n\n".join([title, table, *(f"Not run: {words}." for words in results["not_run"])])
