"""GPU checks: training, embedding and search on a GPU compared with the CPU, for `retrieval doctor --gpu`."""

import math
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from index.arrays import Vectors
from index.errors import InputError, RetrievalError, missing_imports_as_dependency_errors
from index.images.preprocess import Pixels
from index.text import align

INSTALL = "install the extras gpu and train in place of cpu"
_KINDS, _PHOTOS_OF_KIND = 8, 5  # of the demo's photos
_VECTORS, _WIDTH, _CENTRES, _QUERIES, _K = 20_000, 64, 200, 200, 10
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Check:
    """A computation on a device compared with the same on the CPU; `problem` says why that failed, and what to do."""

    name: str
    compared: str = ""  # what `difference` is
    difference: float | None = None
    allowed: float | None = None
    cpu_s: float | None = None
    device_s: float | None = None
    problem: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it was compared and differs no more than allowed."""
        return self.difference is not None and self.allowed is not None and self.difference <= self.allowed


def check_gpu(device: str = "cuda") -> Iterator[Check]:
    """Compare a device with the CPU, one check after the other; `cpu` compares the CPU with itself."""
    checks = {"training": _check_training, "embedding": _check_embedding, "search": _check_search}
    for name, run in checks.items():
        try:
            for check in run(device):
                is_number = check.difference is None or math.isfinite(check.difference)  # JSON has no other
                yield check if is_number else Check(check.name, problem=f"the {check.compared} is {check.difference}")
        except (RetrievalError, ImportError, OSError, RuntimeError, ValueError) as error:
            yield Check(name, problem=str(error))


def describe_checks(checks: Sequence[Check]) -> list[str]:
    """A table of the checks, as lines."""
    rows: list[tuple[str, ...]] = [("check", "compared with the CPU", "difference", "allowed", "CPU, s", "GPU, s", "")]
    for check in checks:
        numbers = (f"{value:.1e}" if value is not None else "-" for value in (check.difference, check.allowed))
        times = (f"{value:.3f}" if value is not None else "-" for value in (check.cpu_s, check.device_s))
        rows.append((check.name, check.compared or "-", *numbers, *times, "pass" if check.passed else "FAIL"))
    return align(rows, right={2, 3, 4, 5})


def find_problems(checks: Sequence[Check]) -> list[str]:
    """A sentence for each check that did not pass."""
    return [
        f"{check.name}: {check.problem}"
        if check.problem is not None
        else f"{check.name}: the GPU's {check.compared} is {check.difference:.1e}, at most {check.allowed:.1e} is "
        "expected: update the driver and the packages of the extra gpu, or use --device cpu"
        for check in checks
        if not check.passed
    ]


def _time(run: Callable[[], _Found], *, repeat: bool = True) -> tuple[_Found, float]:
    """The result and seconds; with `repeat` those of a second run, as a first one also loads libraries and kernels."""
    if repeat:
        run()
    began = time.perf_counter()
    return run(), time.perf_counter() - began


def _unpack_photos(folder: Path) -> Path:
    """Some photos of `retrieval demo`, in folders of their classes."""
    from retrieval_app.demo.story import PHOTOS

    with tarfile.open(PHOTOS) as archive:
        by_kind: dict[str, list[tarfile.TarInfo]] = {}
        for member in archive.getmembers():
            by_kind.setdefault(Path(member.name).parent.name, []).append(member)
        for kind in sorted(by_kind)[:_KINDS]:
            archive.extractall(folder, by_kind[kind][:_PHOTOS_OF_KIND], filter="data")
    return folder


def _check_training(device: str) -> Iterator[Check]:
    """`retrieval train` with the built-in model: the loss after two epochs of fine-tuning."""
    with missing_imports_as_dependency_errors("training"):
        import torch
    if device == "cuda" and not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else f"without CUDA; {INSTALL}"
        raise InputError(
            f"torch finds no GPU (torch {torch.__version__} is built {built}): `nvidia-smi` tells whether the driver "
            "sees one"
        )
    from retrieval_app import train

    def fine_tune(where: str) -> tuple[Any, float]:
        with TemporaryDirectory() as folder:
            photos = _unpack_photos(Path(folder) / "photos")
            return _time(
                lambda: train(
                    photos,
                    Path(folder) / "run",
                    device=where,
                    cache=Path(folder) / "cache",
                    precision="float32",
                    holdout=False,
                    epochs=2,
                    image_size=96,
                    finetune="last-3",
                )["finetuning"]["epochs"][-1]["loss"],
                repeat=False,
            )

    (found, device_s), (expected, cpu_s) = fine_tune(device), fine_tune("cpu")
    error = abs(found - expected) / expected
    yield Check("training: fine-tuning", "relative difference of the loss", error, 0.1, cpu_s, device_s)


def _check_embedding(device: str) -> Iterator[Check]:
    """Embeddings of photos by the built-in model in ONNX Runtime, as galleries run it."""
    from index.model.backends.onnxruntime import (
        CUDA,
        OnnxRuntimeBackend,
        OnnxRuntimeOnCpu,
        import_onnxruntime,
        load_cuda_libraries,
    )
    from index.model.backends.registry import LEAST_AGREEMENT, compare
    from index.model.builtin import find_builtin
    from index.model.checksum import read_model_file
    from index.model.embedder import Embedder

    runtime, path = import_onnxruntime(), find_builtin()
    if device == "cuda" and CUDA not in runtime.get_available_providers():
        raise InputError(
            f"ONNX Runtime {runtime.__version__} is built without CUDA (onnxruntime-gpu has it); {INSTALL}"
        )
    if device == "cuda" and (missing := load_cuda_libraries(runtime)) is not None:
        raise InputError(missing)
    model, reader = read_model_file(path), Embedder(path, runs=False)
    with TemporaryDirectory() as folder:
        photos = sorted(_unpack_photos(Path(folder)).rglob("*.jpg"))
        pixels: Pixels = np.stack([reader.preprocess(photo.read_bytes(), name=photo.name) for photo in photos])
    reference = OnnxRuntimeOnCpu(model, threads=None)
    backend = reference if device == "cpu" else OnnxRuntimeBackend(model, threads=None)
    if device == "cuda" and not backend.on_gpu:
        raise InputError("ONNX Runtime opened the built-in model on the CPU; the warning above says why")
    expected, cpu_s = _time(lambda: reference.run(pixels))
    _, device_s = _time(lambda: backend.run(pixels))
    difference = 1 - compare(backend, pixels, expected).agreement
    yield Check(
        "embedding: the built-in model", "1 - cosine less the mean", difference, 1 - LEAST_AGREEMENT, cpu_s, device_s
    )


def _check_search(device: str) -> Iterator[Check]:
    """Nearest vectors by a scan, and the recall of lists (IVF) whose centres faiss found.

    Galleries are searched on the CPU; a GPU finds the centres of lists, for which it scans.
    """
    from index.faiss_library import import_faiss
    from index.vectors.kinds import KINDS

    faiss = import_faiss()
    if device == "cuda" and not faiss.get_num_gpus():
        installed = ", ".join(packages_distributions().get("faiss", ["faiss"]))
        raise InputError(
            f"faiss {faiss.__version__} finds no GPU ({installed} is installed; faiss-gpu has it); {INSTALL}"
        )
    # (N, D) and (Q, D) float32 unit vectors around common centres.
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(_CENTRES, _WIDTH))
    vectors = centres[generator.integers(_CENTRES, size=_VECTORS + _QUERIES)]
    vectors = vectors + 0.7 * generator.normal(size=vectors.shape)
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    rows, queries = unit[:_VECTORS], unit[_VECTORS:]
    scan = faiss.IndexFlatIP(_WIDTH)
    scan.add(rows)
    scan_there = scan if device == "cpu" else faiss.index_cpu_to_all_gpus(scan)
    (_, expected), cpu_s = _time(lambda: scan.search(queries, _K))
    (_, found), device_s = _time(lambda: scan_there.search(queries, _K))
    share = float(np.mean(found != expected))
    yield Check("search: scan", "share of other results", share, 0.01, cpu_s, device_s)

    def measure_lists(train: Callable[[Any], None]) -> tuple[float, float]:
        index = faiss.index_factory(_WIDTH, f"IVF{_CENTRES},SQ8", faiss.METRIC_INNER_PRODUCT)
        _, seconds = _time(lambda: train(index), repeat=False)
        index.add(rows)
        index.nprobe = _CENTRES // 20
        _, nearest = index.search(queries, _K)
        shares = [len(np.intersect1d(one, other)) / _K for one, other in zip(nearest, expected, strict=True)]
        return float(np.mean(shares)), seconds

    recall, cpu_s = measure_lists(lambda index: index.train(rows))
    recall_there, device_s = measure_lists(lambda index: KINDS["ivf"].train(index, rows))
    lost = max(0.0, recall - recall_there)
    yield Check("search: lists", f"recall@{_K} lost", lost, 0.03, cpu_s, device_s)
