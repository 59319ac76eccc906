"""What every part of `benchmarks.index_pipeline` stands on: the model, the measurements that are kept, taking turns."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import describe_machine, run_retrieval, shared_folder, write_atomically
from index.embedder import Embedder
from index.preprocess import PreprocessConfig
from index.telemetry import import_onnxruntime


@dataclass(frozen=True, slots=True)
class Bench:
    """The model that all parts use, and the folder that keeps what was measured.

    Attributes:
        out: of the command.
        folder: of measurements made with the same options, code and machine.
        weights: of torchvision's mobilenet_v2.
        model: the same weights as `retrieval export` writes them.
        preprocess: of the model's contract.
        on_gpu: whether ONNX Runtime has one; the loop gets one only then.
    """

    out: Path
    folder: Path
    weights: Path
    model: Path
    preprocess: PreprocessConfig
    on_gpu: bool

    @classmethod
    def open(cls, options: argparse.Namespace) -> Bench:
        """Export the model, once."""
        weights = (options.weights or shared_folder() / "weights" / "mobilenet_v2_imagenet.safetensors").resolve()
        chosen = {name: value for name, value in vars(options).items() if name not in ("out", "part", "rounds")}
        measured_by = {
            "options": chosen,
            "machine": describe_machine(),
            "code": _hash_code(),
            "weights": str(weights),
        }
        digest = hashlib.sha256(json.dumps(measured_by, sort_keys=True, default=str).encode()).hexdigest()[:12]
        folder = options.out.resolve() / "measured" / digest
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / "model.onnx"
        if not model.exists():
            run_retrieval("export", "--backbone", "mobilenet_v2", "--weights", weights, "--out", model)
        on_gpu = "CUDAExecutionProvider" in import_onnxruntime().get_available_providers()
        return cls(options.out.resolve(), folder, weights, model, Embedder(model).contract.preprocess, on_gpu)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` gives, or gave before a stop."""
        path = self.folder / f"{name}.json"
        if path.exists():
            stored: dict[str, Any] = json.loads(path.read_text())
            return stored
        document = make()
        write_atomically(path, lambda file: file.write(json.dumps(document, indent=1).encode()))
        rate = document.get("images_per_second")
        print(f"  {name}" + (f": {rate:.1f} images/s" if rate else ""), file=sys.stderr, flush=True)
        return document

    def build(self, sources: Iterable[Path], *options: str | int) -> dict[str, Any]:
        """One `retrieval index build` into a new gallery, which is removed again."""
        gallery = self.folder / "gallery"
        shutil.rmtree(gallery, ignore_errors=True)
        built = run_retrieval("index", "build", self.model, *sources, "--out", gallery, *map(str, options))
        shutil.rmtree(gallery)
        return {**built.document, "process_seconds": built.seconds, "peak_mib": built.peak_mib}


def take_turns(
    bench: Bench, part: str, contestants: Mapping[str, Callable[[], dict[str, Any]]], *, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Each contestant once, then each again."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, make in contestants.items():
            found[name].append(bench.measure(f"{part}-{number}-{name}", make))
    return found


def summarize_rates(documents: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median, least and most images/s of some rounds."""
    rates = [document["images_per_second"] for document in documents]
    return {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}


def check_counts(documents: Sequence[Mapping[str, Any]], *, expected: int) -> None:
    """End the benchmark where a contestant left images out."""
    for document in documents:
        if document["new_images"] != expected:
            sys.exit(f"a contestant indexed {document['new_images']} of {expected} images; the comparison is void")


def _hash_code() -> str:
    """SHA-256 of the sources that decide what is measured."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted([*(root / "index").rglob("*.py"), *(root / "benchmarks").glob("index_*.py")]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
