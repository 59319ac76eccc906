"""The memory of a whole `retrieval index build` against the images done, and at publication."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.common.processes import add_memory, fit_line, sampling
from benchmarks.common.record import shared_folder
from benchmarks.indexing.index_bench import Bench, check_counts
from benchmarks.indexing.index_images import make_small_images
from benchmarks.indexing.index_peers import USUAL_BATCH
from index.model.embedder import Embedder
from index.writing.build_config import BuildConfig

SAMPLE_SECONDS = 0.5
FIT_FROM = 0.2  # of the images: before it caches and allocators fill


class Sample(NamedTuple):
    """A moment of a build: bytes of the process and its children, and images whose vectors are on disk."""

    seconds: float
    anonymous: int
    resident: int
    images: int


def measure_hundred_thousand(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Many small images, once; every sample is in the folder of measurements."""
    kind = "folders" if options.small_in_folders else "tars"
    name = f"small-{kind}-{options.count}-{options.shard_images}-{options.seed}"
    tiny = options.tiny_imagenet or shared_folder() / "data" / "tiny-imagenet"
    folder, made = bench.out / "images" / name, {"count": options.count, "shard_images": options.shard_images}
    archives, in_tars = sorted(tiny.glob("*.tar")), not options.small_in_folders
    sources = make_small_images(archives, folder, **made, seed=options.seed, in_tars=in_tars)
    if options.small_in_folders:
        sources = [folder]
    usual = BuildConfig().checkpoint_images
    checkpoint = min(usual, max(USUAL_BATCH, options.count // 50))
    pace = () if checkpoint == usual else ("--checkpoint-images", checkpoint)
    width = Embedder(bench.model).contract.embedding_dim

    def build() -> dict[str, Any]:
        rows = RowCounter(bench.folder / "gallery" / "building", width=width)
        samples: list[dict[str, float]] = []
        started, own = time.perf_counter(), psutil.Process()

        def look() -> None:
            memory = add_memory(own)
            if memory["resident"]:
                moment = time.perf_counter() - started
                sample = Sample(moment, memory["anonymous"], memory["resident"], rows.count())
                samples.append(sample._asdict())

        with sampling(look, every_s=SAMPLE_SECONDS):
            document = bench.build(sources, *pace)
        return {**document, "samples": samples}

    document = bench.measure("hundred-thousand", build)
    check_counts([document], expected=options.count)
    samples = [Sample(**sample) for sample in document.pop("samples")]
    places = ("folder" if options.small_in_folders else "tar") + "s" * (len(sources) > 1)
    what = f"{options.count:,} small images in {len(sources)} {places}"
    return {"what": what, "build": document, **describe_memory(samples, total=options.count)}


class RowCounter:
    """Counts the vectors that a build in progress has written: rows of a width in the `.npy` files below a folder."""

    def __init__(self, folder: Path, *, width: int) -> None:
        self._folder, self._width = folder, width
        self._known: dict[str, int] = {}

    def count(self) -> int:
        """Rows now; 0 where there is no folder. Files are written once, so each is opened once."""
        found = {}
        for folder, _, names in os.walk(self._folder):  # goes on where a folder is removed meanwhile
            for path in (os.path.join(folder, name) for name in names if name.endswith(".npy")):
                try:
                    found[path] = self._known[path] if path in self._known else self._rows(path)
                except (OSError, ValueError):  # removed meanwhile, or not whole yet
                    continue
        self._known = found
        return sum(found.values())

    def _rows(self, path: str) -> int:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        shapes = [array.shape[1:], *(array.dtype[name].shape for name in array.dtype.names or ())]
        return len(array) if (self._width,) in shapes else 0  # vectors alone, or in a table with their ids


def describe_memory(samples: Sequence[Sample], *, total: int) -> dict[str, Any]:
    """The line through the anonymous memory of a build's embedding, its peaks, and its pace early and late.

    Embedding ends with the first sample that has all rows; what follows is publication, where rows are written again.

    Raises:
        SystemExit: the build's vectors were not seen on disk.
    """
    seconds, anonymous, resident, images = np.array(samples, dtype=np.float64).reshape(-1, 4).T
    most = min(total, images.max(initial=0))
    if not most:
        sys.exit("no vectors were seen in GALLERY/building during the build: too few images, or another layout")
    end = int(np.argmax(images >= most)) + 1
    done = images[:end]

    def median_mib(low: float, high: float) -> float | None:
        chosen = anonymous[:end][(low * most <= done) & (done <= high * most)]
        return float(np.median(chosen)) / 2**20 if len(chosen) else None

    def pace(low: float, high: float) -> float | None:
        """Images a second between the first and last step of the count; None with fewer than two."""
        steps = np.flatnonzero(np.diff(done) > 0) + 1
        chosen = steps[(low * most <= done[steps]) & (done[steps] <= high * most)]
        if len(chosen) < 2:
            return None
        first, last = chosen[0], chosen[-1]
        return float((done[last] - done[first]) / (seconds[last] - seconds[first]))

    def peaks(values: np.ndarray) -> dict[str, float]:
        parts = {"peak while embedding": values[:end], "peak at publication": values[end:]}
        return {name: float(part.max(initial=0)) / 2**20 for name, part in parts.items()}

    fitted = done >= FIT_FROM * most
    early_and_late = {"20-40 %": median_mib(0.2, 0.4), "80-100 %": median_mib(0.8, 1.0)}
    return {
        "samples": len(samples), "bytes_per_image": fit_line(done[fitted], anonymous[:end][fitted]),
        "anonymous_mib": {**early_and_late, **peaks(anonymous)}, "resident_mib": peaks(resident),
        "publication_seconds": float(seconds[-1] - seconds[end - 1]),
        "images_per_second": {"first fifth": pace(0.0, 0.2), "last fifth": pace(0.8, 1.0)},
    }  # fmt: skip
