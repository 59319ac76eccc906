"""Every benchmark that compares speed with peers: its question, its command, small sizes for a try, its records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("index", "training", "export", "retrieval_app", "benchmarks/common")
SMALL, PHOTOS = 300, "photos"  # of a quick run, and their folder


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One command.

    Attributes:
        module: that `python -m` runs.
        options: its own beside `--out`; `{seed}`, `{base}` (the folder of all benchmarks) and `{photos}` (`SMALL`
            clothing photos, a folder below that) are filled in.
        quick: options that make it small, after the others; None: it has no small size, and no quick run.
        records: patterns of its JSON files below its folder; each must find one.
        out: what `--out` names within its folder: itself, or a file.
        code: folders of benchmarks that it is made of; `PACKAGES` beside them.
        after: options that are given where another benchmark, by its name, finished before this one.
    """

    question: str
    module: str
    records: tuple[str, ...]
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ()
    out: str = "."
    code: tuple[str, ...] = ()
    after: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def command(self, folder: Path, *, seed: int, is_quick: bool, finished: Sequence[str] = ()) -> list[str]:
        """What to run, with everything made below a folder of its own, which lies beside those of the others."""
        words = [*self.options, *(self.quick or () if is_quick else ())]
        for name, more in self.after:
            words += more if name in finished else ()
        base = folder.parent
        filled = [word.format(seed=seed, base=base, photos=base / PHOTOS) for word in words]
        return [sys.executable, "-m", self.module, "--out", str(folder / self.out), *filled]


_SEED = ("--seed", "{seed}")

BENCHMARKS: dict[str, Benchmark] = {
    "indexing": Benchmark(
        "does indexing photos keep the machine busy, beside a DataLoader and torch in float32, by model and runtime?",
        "benchmarks.indexing", ("record-photos.json", "record-models.json"),
        options=("--part", "photos", "--part", "models", *_SEED),
        quick=("--limit", str(SMALL), "--rounds", "1", "--warm-up", "32", "--calibrated-images", "64"),
        code=("benchmarks/indexing",),
    ),
    "cold-start": Benchmark(
        "how long does a person wait for a first search, beside importing torch and faiss?",
        "benchmarks.serving.cold_start", ("cold-start.json",), quick=("--repeats", "3", "--photos", "40"),
        out="cold-start.json", code=("benchmarks/serving",),
    ),
    "serving": Benchmark(
        "how many uploads does the server answer, beside a plain FastAPI handler?",
        "benchmarks.serving", ("record-photos.json",),
        options=("--part", "photos", "--without", "gradio", *_SEED),
        quick=("--rounds", "1", "--seconds", "2", "--warm-up", "0.5", "--clients", "32", "--alone-images", "64",
               "--photos", "{photos}", "--max-recall-drop", "1"),
        code=("benchmarks/serving", "benchmarks/indexing"),
    ),
    "losses": Benchmark(
        "do the losses hold with 100,000 classes, beside the authors' formula and pytorch-metric-learning?",
        "benchmarks.training.losses_at_scale", ("record-proxy-anchor.json", "record-smooth.json"),
        options=("--part", "proxy-anchor", "--part", "smooth", *_SEED),
        quick=("--classes", "2000", "--batch", "64", "--width", "64", "--rounds", "1", "--repeats", "1"),
        code=("benchmarks/training",),
    ),
    "network-epoch": Benchmark(
        "what does an epoch of a whole network cost, beside a DataLoader and torch in float32?",
        "benchmarks.training.network_epoch", ("record-epoch.json",), options=_SEED,
        quick=("--images", "100", "--searched", "60", "--epochs", "1", "--rounds", "1"),
        code=("benchmarks/training",),
    ),
    "ann": Benchmark(
        "does the index find as much as hnswlib, usearch and faiss as fast?",
        "benchmarks.ann", ("record-curves-*.json",),
        options=("--part", "curves", *_SEED), quick=None,  # its vectors are of all photos
        code=("benchmarks/ann",),
    ),
    "evaluation": Benchmark(
        "what does scoring a test set cost, beside pytorch-metric-learning?",
        "benchmarks.training.evaluation", ("record.json",),
        options=("--vectors", "{base}/evaluation/vectors", *_SEED), quick=None,  # its vectors alone take minutes
        code=("benchmarks/training", "benchmarks/ann"),
    ),
    "precision": Benchmark(
        "what do precisions and runtimes gain, and cost in Recall@1, beside plain torch?",
        "benchmarks.precision", ("precision.json",), quick=("--photos", "200", "--timed", "16"),
        code=("benchmarks/noise", "benchmarks/network"),
    ),
    "training": Benchmark(
        "what does one training cost?", "benchmarks.training", ("record.json",), options=_SEED,
        quick=("--max-per-class", "2", "--epochs", "1"), code=("benchmarks/training",),
    ),
    "features": Benchmark(
        "how fast are a frozen backbone's features in torch, ONNX Runtime and OpenVINO, and do they find as much?",
        "benchmarks.training.features", ("record.json",), options=_SEED,
        quick=("--limit", "64", "--timed", "32", "--rounds", "1"), code=("benchmarks/training",),
    ),
    "roofline": Benchmark(
        "how near does each stage come to what this machine can do?",
        "benchmarks.roofline", ("record.json",), options=_SEED,
        quick=("--images", "64", "--vectors", "20000", "--array-mib", "64", "--seconds", "0.2", "--rounds", "1"),
        code=("benchmarks/roofline", "benchmarks/indexing", "benchmarks/serving"),
        after=(("serving", ("--serving", "{base}/serving/record-photos.json")),),
    ),
}  # fmt: skip
