"""The stages of indexing and searching, each alone, as the package runs it: how many it does in a second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.roofline.limits import best_of, rate_of_all
from index.arrays import Vectors
from index.images.image_files import decode_image, read_bytes
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.model.embedder import Embedder
from index.threads import map_ahead, usable_cores
from index.vectors.search import VectorSearch
from index.vectors.shards import VectorRows
from index.vectors.stored_rows import StoredRows

K = 10


def measure_reading(paths: Sequence[Path], *, seconds: float) -> float:
    """Files/s, opened, checked and read by a thread a core; they are in memory after the first time."""
    workers = usable_cores()

    def run() -> None:
        for _ in map_ahead(read_bytes, paths, workers=workers, ahead=4 * workers):
            pass

    run()
    return len(paths) / best_of(run, seconds=seconds)


def measure_decoding(data: Sequence[bytes], config: PreprocessConfig, *, seconds: float) -> float:
    """Images/s from bytes to upright RGB, by a thread a core."""

    def decode(one: bytes) -> Image.Image:
        return decode_image(one, name="photo", target_side=config.resize)

    return rate_of_all(decode, data, workers=usable_cores(), seconds=seconds)


def measure_bare_decoding(data: Sequence[bytes], config: PreprocessConfig, *, seconds: float) -> float:
    """Images/s of libjpeg-turbo alone, by simplejpeg, scaled as far as the model allows, without any check."""
    import simplejpeg

    decode = partial(simplejpeg.decode_jpeg, min_height=config.resize, min_width=config.resize)
    return rate_of_all(decode, data, workers=usable_cores(), seconds=seconds)


def measure_resizing(images: Sequence[Image.Image], config: PreprocessConfig, *, seconds: float) -> float:
    """Images/s from decoded images to model inputs, by a thread a core."""
    workers = usable_cores()

    def run() -> None:
        for _ in map_ahead(
            lambda image: preprocess_image(image, config), images, workers=workers, ahead=4 * workers
        ):
            pass

    run()
    return len(images) / best_of(run, seconds=seconds)


def measure_model(embedder: Embedder, pixels: Pixels, *, seconds: float) -> float:
    """Images/s of batches as `index build` makes them, from pixels in memory."""
    embedder.embed_batch(pixels)
    return len(pixels) / best_of(lambda: embedder.embed_batch(pixels), seconds=seconds)


def make_vectors(count: int, width: int, *, seed: int) -> Vectors:
    """(count, width) float32 unit rows at random."""
    vectors = np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def measure_search(vectors: Vectors, *, seconds: float) -> float:
    """Queries/s, one after another by one thread, that ask all of the vectors for the nearest, exactly."""
    search = VectorSearch(StoredRows.of([VectorRows(np.arange(len(vectors)), vectors)]))
    queries = vectors[: min(16, len(vectors))]

    def run() -> None:
        for query in queries:
            search.search(query[None], k=K)

    run()
    return len(queries) / best_of(run, seconds=seconds)
