"""Losses at many classes: seconds and memory of forward and backward, beside what the device allows at best."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.tables import format_table
from benchmarks.gpu.gpu_limits import Limits, multiplying, time_runs
from training.losses.interface import Batch, MetricLoss
from training.losses.make_loss import build_loss
from training.options.losses import LossConfig

METHODS = ("spa", "proxy-anchor", "adaptive-proxy-anchor", "proxy-nca")
STEP = "AdamW's step of the proxies"
_FORMATS = ("float32", "tf32")
_CHECKED_CLASSES = 2000
_PRODUCTS = 3  # of (B, D) and (C, D): cosines, and the gradients of both
_STATES = 7  # AdamW reads weight, gradient and two averages, and writes all but the gradient


def measure_losses(limits: Limits, options: argparse.Namespace) -> dict[str, Any]:
    """Every method in both formats of float32 products, and the optimizer's step that follows them."""
    device = options.computes_on
    sizes = {"batch": options.batch, "classes": options.classes, "width": options.width}
    rows = []
    for method in options.method or METHODS:
        for number_format in _FORMATS:
            with multiplying(number_format):
                measured = _measure(method, **sizes, device=device, seed=options.seed)
                measured["error"] = _compare(method, **sizes, device=device, seed=options.seed)
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


def _measure(
    method: str, *, batch: int, classes: int, width: int, device: torch.device, seed: int
) -> dict[str, Any]:
    loss, embeddings, told = _make(method, batch=batch, classes=classes, width=width, device=device, seed=seed)

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


def _compare(
    method: str, *, batch: int, classes: int, width: int, device: torch.device, seed: int
) -> float | None:
    """How far the gradient of the embeddings is from that in float64 on the CPU, by their length; None: 0 there."""
    sizes = {"batch": batch, "classes": min(classes, _CHECKED_CLASSES), "width": width, "seed": seed}
    gradients = []
    for where, dtype in ((device, torch.float32), (torch.device("cpu"), torch.float64)):
        loss, embeddings, told = _make(method, **sizes, device=where)
        own = embeddings.detach().to(dtype).requires_grad_()
        loss.to(dtype)(own, told).backward()
        assert own.grad is not None
        gradients.append(own.grad.double().cpu())
    found, expected = gradients
    length = expected.norm().item()
    return (found - expected).norm().item() / length if length else None


def _make(
    method: str, *, batch: int, classes: int, width: int, device: torch.device, seed: int
) -> tuple[MetricLoss, Tensor, Batch]:
    """The loss, (B, D) embeddings that want a gradient, and a batch with four images a class."""
    generator = torch.Generator().manual_seed(seed)
    loss = build_loss(LossConfig(method), class_count=classes, embedding_dim=width, generator=generator).to(device)
    embeddings = torch.nn.functional.normalize(torch.randn(batch, width, generator=generator))
    labels = torch.randint(classes, (-(-batch // 4),), generator=generator).repeat_interleave(4)[:batch]
    confidences = None
    if LossConfig(method).needs_confidences:
        confidences = 0.05 * torch.rand(batch, classes, generator=generator)
        confidences[torch.arange(batch), labels] = 0.9
        confidences = confidences.to(device)
    told = Batch(labels.to(device), torch.arange(batch, device=device), confidences)
    return loss, embeddings.to(device).requires_grad_(), told


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
