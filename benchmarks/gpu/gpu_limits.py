"""What a device does at most, measured: bytes a second of a copy, operations a second of matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.common.tables import format_table
from training.options.machine import name_device

FORMATS = ("float32", "tf32", "bfloat16")
_WARM_RUNS, _SECONDS, _MOST_RUNS = 3, 0.5, 200


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
