"""What every part of `benchmarks.indexing` stands on: the model, the measurements that are kept, taking turns."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.kept import digest, hash_code, keep
from benchmarks.common.record import describe_machine, find_weights, run_retrieval
from benchmarks.common.tables import spread
from index.images.preprocess import PreprocessConfig
from index.model.embedder import Embedder


@dataclass(frozen=True, slots=True)
class Bench:
    """The model that all parts use, and the folder that keeps what was measured.

    Attributes:
        folder: of measurements made with the same options, code and machine.
        weights: of torchvision's mobilenet_v2; `model` is the same as `retrieval export` writes it.
        on_gpu: whether the model runs on one; the loop gets one only then.
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
        weights = Path(find_weights(options.weights)).resolve()
        chosen = {name: value for name, value in vars(options).items() if name not in ("out", "part", "rounds")}
        code = hash_code("index", "benchmarks/indexing")
        measured_by = {"options": chosen, "machine": describe_machine(), "code": code, "weights": str(weights)}
        folder = options.out.resolve() / "measured" / digest(measured_by)
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / "model.onnx"
        if not model.exists():
            run_retrieval("export", "--backbone", "mobilenet_v2", "--weights", weights, "--out", model)
        opened = Embedder(model)
        return cls(options.out.resolve(), folder, weights, model, opened.contract.preprocess, opened.on_gpu)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` gives, or gave before a stop."""
        document = keep(self.folder / f"{name}.json", make)
        rate = document.get("images_per_second")
        print(f"  {name}" + (f": {rate:.1f} images/s" if rate else ""), file=sys.stderr, flush=True)
        return document

    def build(
        self, sources: Iterable[Path], *options: str | int, model: Path | None = None, is_evaluated: bool = False
    ) -> dict[str, Any]:
        """One `retrieval index build` into a new gallery, which is removed again.

        Args:
            model: another than that of all parts.
            is_evaluated: tell Recall@1 of the gallery by its labels too, as `recall_at_1`, which is not timed.
        """
        gallery = self.folder / "gallery"
        shutil.rmtree(gallery, ignore_errors=True)
        built = run_retrieval(
            "index", "build", model or self.model, *sources, "--out", gallery, "--no-cache", *map(str, options)
        )
        found = {**built.document, "process_seconds": built.seconds, "peak_mib": built.peak_mib}
        if is_evaluated:
            found["recall_at_1"] = run_retrieval("evaluate", gallery).document["recall"]["1"]
        shutil.rmtree(gallery)
        return found


def take_turns(
    bench: Bench, part: str, contestants: Mapping[str, Callable[[], dict[str, Any]]], *, rounds: int
) -> dict[str, dict[str, Any]]:
    """Each contestant once, then each again: all `rounds`, and the median, least and most `rates` of them."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, make in contestants.items():
            found[name].append(bench.measure(f"{part}-{number}-{name}", make))
    rates = {
        name: spread([each["images_per_second"] for each in each_round]) for name, each_round in found.items()
    }
    return {"rounds": found, "rates": rates}


def check_counts(documents: Sequence[Mapping[str, Any]], *, expected: int) -> None:
    """End the benchmark where a contestant left images out."""
    for document in documents:
        if document["new_images"] != expected:
            sys.exit(f"a contestant indexed {document['new_images']} of {expected} images; the comparison is void")
