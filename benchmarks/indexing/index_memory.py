"""The memory of a whole `retrieval index build` against the images done, and at publication."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Sample:
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
    sources = make_small_images(
        sorted(tiny.glob("*.tar")), bench.out / "images" / name, count=options.count,
        shard_images=options.shard_images, seed=options.seed, in_tars=not options.small_in_folders,
    )  # fmt: skip
    if options.small_in_folders:
        sources = [bench.out / "images" / name]
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
                samples.append({
                    "seconds": moment, "anonymous": memory["anonymous"], "resident": memory["resident"],
                    "images": rows.count(),
                })  # fmt: skip

        with sampling(look, every_s=SAMPLE_SECONDS):
            document = bench.build(sources, *pace)
        return {**document, "samples": samples}

    document = bench.measure("hundred-thousand", build)
    check_counts([document], expected=options.count)
    samples = [Sample(**sample) for sample in document.pop("samples")]
    return {
        "what": f"{options.count:,} small images in {len(sources)} {'folder' if options.small_in_folders else 'tar'}"
        + "s" * (len(sources) > 1),
        "build": document,
        **describe_memory(samples, total=options.count),
    }


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
    most = min(total, max((sample.images for sample in samples), default=0))
    if not most:
        sys.exit("no vectors were seen in GALLERY/building during the build: too few images, or another layout")
    end = next(number for number, sample in enumerate(samples) if sample.images >= most)
    embedding, publication = samples[: end + 1], samples[end + 1 :]
    fitted = [sample for sample in embedding if sample.images >= FIT_FROM * most]
    return {
        "samples": len(samples),
        "bytes_per_image": fit_line(
            np.array([sample.images for sample in fitted]), np.array([sample.anonymous for sample in fitted])
        ),
        "anonymous_mib": {
            "20-40 %": _median_mib(embedding, most, 0.2, 0.4),
            "80-100 %": _median_mib(embedding, most, 0.8, 1.0),
            "peak while embedding": max(sample.anonymous for sample in embedding) / 2**20,
            "peak at publication": max((sample.anonymous for sample in publication), default=0) / 2**20,
        },
        "resident_mib": {
            "peak while embedding": max(sample.resident for sample in embedding) / 2**20,
            "peak at publication": max((sample.resident for sample in publication), default=0) / 2**20,
        },
        "publication_seconds": publication[-1].seconds - embedding[-1].seconds if publication else 0.0,
        "images_per_second": {
            "first fifth": _pace(embedding, most, 0.0, 0.2),
            "last fifth": _pace(embedding, most, 0.8, 1.0),
        },
    }


def _median_mib(samples: Sequence[Sample], total: int, low: float, high: float) -> float | None:
    chosen = [sample.anonymous for sample in samples if low * total <= sample.images <= high * total]
    return statistics.median(chosen) / 2**20 if chosen else None


def _pace(samples: Sequence[Sample], total: int, low: float, high: float) -> float | None:
    """Images a second between the first and last step of the count in a part of the build; None with fewer than two."""
    steps = [after for before, after in pairwise(samples) if after.images > before.images]
    chosen = [sample for sample in steps if low * total <= sample.images <= high * total]
    if len(chosen) < 2:
        return None
    return (chosen[-1].images - chosen[0].images) / (chosen[-1].seconds - chosen[0].seconds)
