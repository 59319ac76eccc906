"""What the machine itself can do, each measured a few times: copies, reads, products of matrices, JPEG."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from threadpoolctl import threadpool_limits

from index.arrays import Vectors
from index.model.backends.onnxruntime import import_onnxruntime
from index.threads import map_ahead

BLOCK = 1 << 20
GEMM_SIDES = (512, 1024, 2048)
_OPSET, _IR = 17, 8


def best_of(run: Callable[[], object], *, seconds: float, least: int = 2) -> float:
    """Seconds of the fastest call, of as many as take so long together: a limit is what was reached once."""
    fastest, until, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < least or time.perf_counter() < until:
        started = time.perf_counter()
        run()
        fastest, calls = min(fastest, time.perf_counter() - started), calls + 1
    return fastest


def measure_copy(*, mib: int, seconds: float) -> float:
    """Bytes/s read and written by one thread that copies an array much larger than its caches."""
    source = np.ones(mib * BLOCK, dtype=np.uint8)
    target = np.empty_like(source)
    return 2 * source.nbytes / best_of(lambda: np.copyto(target, source), seconds=seconds)


def measure_scan(vectors: Vectors, *, seconds: float) -> float:
    """Bytes/s that one thread reads of float32 vectors, each number multiplied and added once."""
    numbers = vectors.reshape(-1)
    with threadpool_limits(1):
        return numbers.nbytes / best_of(lambda: numbers @ numbers, seconds=seconds)


def measure_sequential_read(path: Path, *, mib: int, seconds: float) -> float:
    """Bytes/s of one large file in the system's memory, read front to back; the file is removed."""
    path.write_bytes(os.urandom(BLOCK) * mib)

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while file.read(BLOCK):
                pass

    rate = mib * BLOCK / best_of(read, seconds=seconds)
    path.unlink()
    return rate


def measure_gemm(precision: str, *, seconds: float, sides: Sequence[int] = GEMM_SIDES) -> dict[str, float]:
    """Operations/s of the fastest square product by ONNX Runtime on all cores, `fp32` or `int8`, and its side."""
    rates = {side: 2 * side**3 / _time_gemm(precision, side, seconds=seconds / len(sides)) for side in sides}
    best = max(rates, key=lambda side: rates[side])
    return {"side": best, "operations_per_second": rates[best]}


def _time_gemm(precision: str, side: int, *, seconds: float) -> float:
    random = np.random.default_rng(side)
    left: np.ndarray
    right: np.ndarray
    if precision == "fp32":
        operator, given, wanted = "MatMul", TensorProto.FLOAT, TensorProto.FLOAT
        left = random.standard_normal((side, side), dtype=np.float32)
        right = random.standard_normal((side, side), dtype=np.float32)
    else:
        operator, given, wanted = "MatMulInteger", TensorProto.UINT8, TensorProto.INT32
        left = random.integers(0, 255, (side, side), dtype=np.uint8)
        right = random.integers(-127, 127, (side, side), dtype=np.int8)
    shape = [side, side]
    graph = helper.make_graph(
        [helper.make_node(operator, ["left", "right"], ["product"])], "product",
        [helper.make_tensor_value_info("left", given, shape)],
        [helper.make_tensor_value_info("product", wanted, shape)],
        [numpy_helper.from_array(right, "right")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    onnx.checker.check_model(model)
    runtime = import_onnxruntime()
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session.run(None, {"left": left})
    return best_of(lambda: session.run(None, {"left": left}), seconds=seconds)


def rate_of_all(work: Callable[[bytes], object], data: Sequence[bytes], *, workers: int, seconds: float) -> float:
    """Calls/s of work on every one of `data`, by as many threads as workers."""

    def run() -> None:
        for _ in map_ahead(work, data, workers=workers, ahead=4 * workers):
            pass

    run()
    return len(data) / best_of(run, seconds=seconds)
