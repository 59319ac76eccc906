"""Whether the loop and ours compute the same: cosines between the vectors of both."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.indexing.index_images import take_evenly
from benchmarks.indexing.index_peers import read_pixels
from index.model.embedder import Embedder

LEAST_COSINE = 0.99
COMPARED_VECTORS = 128


def compare_vectors(model: Embedder, paths: Sequence[Path], *, index: Path) -> dict[str, Any]:
    """Cosines between a model's vectors and those in the loop's index of all paths, of some images."""
    import faiss

    flat = faiss.read_index(str(index))
    cosines = []
    for path in take_evenly(paths, COMPARED_VECTORS):
        ours = model.embed_batch(read_pixels(path, config=model.contract.preprocess)[None])[0]
        cosines.append(float(ours @ flat.reconstruct(paths.index(path))))
    return {"images": len(cosines), "mean_cosine": statistics.fmean(cosines), "least_cosine": min(cosines)}


def check_agreement(agreement: Mapping[str, Any]) -> None:
    """End the benchmark where the contestants do not compute the same."""
    if not agreement["mean_cosine"] > LEAST_COSINE:
        mean = agreement["mean_cosine"]
        sys.exit(f"mean cosine {mean:.4f} between the vectors, {LEAST_COSINE} needed; the comparison is void")
