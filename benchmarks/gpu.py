"""Losses at many classes and embedding on a GPU, beside the limits that are measured in the same run.

limits      a copy within the device's memory, and products of matrices of random numbers in float32, TF32 and bfloat16
losses      forward and backward, and the optimizer's step, at 100,000 classes: milliseconds, memory, gradient error
embedding   images/s from pixels in the host's memory, by torch and by the ONNX runtime of galleries

Times are medians by the device's own clock. `--device cpu` tries the command where there is no GPU. Training of a whole
network on a GPU: `python -m benchmarks.network`.

    python -m benchmarks.gpu --out bench/gpu
    python -m benchmarks.gpu --out bench/gpu --part losses --classes 1000000
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, print_machine
from benchmarks.common.tables import format_table
from index.images.preprocess import Pixels
from index.model.builtin import find_builtin
from index.model.embedder import Embedder
from retrieval_app.commands.gpu_checks import compare_gradients, draw_batch
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.options.backbone_libraries import preprocess_for
from training.options.losses import LossConfig
from training.options.machine import name_device, resolve_device

FORMATS = ("float32", "tf32", "bfloat16")
METHODS = ("spa", "proxy-anchor", "adaptive-proxy-anchor", "proxy-nca")
STEP = "AdamW's step of the proxies"
_WARM_RUNS, _SECONDS, _MOST_RUNS = 3, 0.5, 200
_CHECKED_CLASSES = 2000
_PRODUCTS = 3  # of (B, D) and (C, D): cosines, and the gradients of both
_STATES = 7  # AdamW reads weight, gradient and two averages, and writes all but the gradient


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=tuple(PARTS))
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    add("--side", type=int, default=8192, help="of the matrices that are multiplied (default: %(default)s)")
    add("--copied-mib", type=int, default=4096, help="that are copied (default: %(default)s)")
    add("--method", action="append", help=f"a loss, of `losses` (default: {', '.join(METHODS)})")
    add("--classes", type=int, default=100_000, help="of `losses` (default: %(default)s)")
    add("--batch", type=int, default=180, help="of `losses` (default: %(default)s)")
    add("--width", type=int, default=512, help="of embeddings (default: %(default)s)")
    add("--network", action="append", help="of `embedding`, without weights (default: mobilenet_v2, resnet50)")
    add("--crop", type=int, default=224, help="pixels a side of `embedding` (default: %(default)s)")
    add("--embedding-batch", type=int, nargs="+", default=[32, 64, 256], help="images (default: 32 64 256)")
    add("--model", type=Path, help="an exported model, of `embedding` (default: the built-in model)")
    options = parse_counts(parser, arguments, "side", "copied_mib", "classes", "batch", "width", "crop")
    options.network = options.network or ["mobilenet_v2", "resnet50"]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    with ending_in_words("gpu"):
        options.computes_on = resolve_device(options.device)
        print_machine([options.seed])
        described = describe_device(options.computes_on)
        print(", ".join(f"{name} {value}" for name, value in described.items()))
        limits = measure_limits(options.computes_on, side=options.side, copied_bytes=options.copied_mib << 20)
        _, tables = run_parts(PARTS, options, limits, device=described)
        print("", *tables, sep="\n\n")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one device.

    Attributes:
        bytes_per_s: of a copy within its memory, bytes read and bytes written.
        flops_per_s: of a large matrix product of random numbers, by format.
    """

    bytes_per_s: float
    flops_per_s: Mapping[str, float]

    def floor_s(self, *, size_bytes: float, flops: float, number_format: str) -> float:
        """The seconds that work cannot go below: those of its bytes or of its operations, whichever are more."""
        return max(size_bytes / self.bytes_per_s, flops / self.flops_per_s[number_format])


def measure_limits(device: torch.device, *, side: int, copied_bytes: int) -> Limits:
    """Copy so many bytes, and multiply matrices of side x side random numbers."""
    copied = _time_copy(copied_bytes, device=device)
    rates = {name: 2 * side**3 / _time_product(name, side=side, device=device) for name in FORMATS}
    return Limits(2 * copied_bytes / copied, rates)


def _time_copy(size_bytes: int, *, device: torch.device) -> float:
    source = torch.rand(size_bytes // 4, device=device)
    target = torch.empty_like(source)
    return time_runs(lambda: target.copy_(source), device=device)


def _time_product(number_format: str, *, side: int, device: torch.device) -> float:
    dtype = torch.bfloat16 if number_format == "bfloat16" else torch.float32
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    with multiplying(number_format):
        return time_runs(lambda: left @ right, device=device)


@contextmanager
def multiplying(number_format: str) -> Any:
    """Let products of float32 matrices go by TF32, or not, meanwhile."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if number_format == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def time_runs(run: Callable[[], object], *, device: torch.device, seconds: float = _SECONDS) -> float:
    """Median seconds of a run, by the device's own clock where it has one; the first runs are not counted."""
    for _ in range(_WARM_RUNS):
        run()
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < _WARM_RUNS or (time.perf_counter() - began < seconds and len(found) < _MOST_RUNS):
        found.append(_time_run(run, device))
    return statistics.median(found)


def _time_run(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000


def describe_device(device: torch.device) -> dict[str, Any]:
    """What computes, and with which versions."""
    described: dict[str, Any] = {"name": name_device(device), "torch": torch.__version__}
    if device.type == "cuda":
        seen = torch.cuda.get_device_properties(device)
        described |= {
            "memory_gib": round(seen.total_memory / 2**30, 1), "multiprocessors": seen.multi_processor_count,
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        }  # fmt: skip
    return described


def tabulate_limits(results: Mapping[str, Any]) -> str:
    """One row."""
    rates = [f"{results['flops_per_s'][name] / 1e12:.2f}" for name in FORMATS]
    head = ["device", "copy, GB/s read and written", *(f"{name} product, TFLOP/s" for name in FORMATS)]
    return format_table(head, [(results["device"]["name"], f"{results['bytes_per_s'] / 1e9:.0f}", *rates)])


def measure_losses(limits: Limits, options: argparse.Namespace) -> dict[str, Any]:
    """Every method in both formats of float32 products, and the optimizer's step that follows them."""
    device = options.computes_on
    sizes = {"batch": options.batch, "classes": options.classes, "width": options.width}
    rows = []
    for method in options.method or METHODS:
        for number_format in ("float32", "tf32"):
            with multiplying(number_format):
                measured = _measure(method, **sizes, device=device, seed=options.seed)
                checked = {**sizes, "classes": min(options.classes, _CHECKED_CLASSES)}
                measured["error"], _, _ = compare_gradients(method, **checked, device=device, seed=options.seed)
            floor = limits.floor_s(
                size_bytes=_count_bytes(method, **sizes), flops=_count_flops(**sizes), number_format=number_format
            )
            rows.append({"method": method, "format": number_format, **measured, "floor_s": floor})
    rows.append(_measure_step(limits, classes=options.classes, width=options.width, device=device))
    return {**sizes, "rows": rows}


def _count_flops(*, batch: int, classes: int, width: int) -> float:
    return _PRODUCTS * 2.0 * batch * classes * width


def _count_bytes(method: str, *, batch: int, classes: int, width: int) -> float:
    """The fewest: proxies read once and their gradient written once, and confidences read where there are some."""
    confidences = batch * classes if LossConfig(method).needs_confidences else 0
    return 4.0 * (2 * classes * width + 2 * batch * width + confidences)


def _measure(method: str, *, batch: int, classes: int, width: int, device: torch.device, seed: int) -> dict[str, Any]:
    loss, embeddings, told = draw_batch(method, batch=batch, classes=classes, width=width, device=device, seed=seed)

    def run() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        loss(embeddings, told).backward()

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    seconds = time_runs(run, device=device)
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
    return {"seconds": seconds, "peak_bytes": peak}


def _measure_step(limits: Limits, *, classes: int, width: int, device: torch.device) -> dict[str, Any]:
    proxies = torch.nn.Parameter(torch.randn(classes, width, device=device))
    proxies.grad = torch.randn_like(proxies)
    optimizer = torch.optim.AdamW([proxies], fused=True)
    size_bytes = 4.0 * _STATES * proxies.numel()
    floor = limits.floor_s(size_bytes=size_bytes, flops=0, number_format="float32")
    seconds = time_runs(optimizer.step, device=device)
    return {"method": STEP, "format": "", "seconds": seconds, "peak_bytes": None, "error": None, "floor_s": floor}


def tabulate_losses(results: Mapping[str, Any]) -> str:
    """A row for each method and format."""
    rows = []
    for row in results["rows"]:
        peak, error = row["peak_bytes"], row["error"]
        rows.append([
            row["method"], row["format"], f"{1000 * row['seconds']:.3f}", f"{1000 * row['floor_s']:.3f}",
            f"{100 * row['floor_s'] / row['seconds']:.0f} %", "" if peak is None else f"{peak / 2**20:.0f}",
            "" if error is None else f"{error:.1e}",
        ])  # fmt: skip
    head = ["loss", "products", "forward and backward, ms", "at best, ms", "of the limit", "peak MiB", "error"]
    sizes = f"{results['classes']:,} classes, batch {results['batch']}, {results['width']}-d"
    return f"{sizes}\n\n{format_table(head, rows)}"


def measure_embedding(limits: Limits, options: argparse.Namespace) -> dict[str, Any]:
    """Every network in both precisions and every batch size, from pixels in the host's memory to features."""
    rows = []
    for name in options.network:
        backbone = load_backbone(name, "none", side=options.crop)
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
        rows.append(_time_model(options.model or find_builtin(), batch=batch, seed=options.seed))
    return {"crop": options.crop, "rows": rows}


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


PARTS: Mapping[str, Part] = {
    "limits": Part(
        lambda limits, options: {**asdict(limits), "device": describe_device(options.computes_on)}, tabulate_limits
    ),
    "losses": Part(measure_losses, tabulate_losses),
    "embedding": Part(measure_embedding, tabulate_embedding),
}


if __name__ == "__main__":
    main()
