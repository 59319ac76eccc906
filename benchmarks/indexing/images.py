"""Images of the benchmarks: their list, and 12-megapixel JPEGs made of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps

from benchmarks.common.record import write_atomically
from index.threads import usable_cores

T = TypeVar("T")

TILE_COLUMNS, TILE_ROWS = 4, 3
TILE_SIDE = 1000
LARGE_QUALITY = 90
SENSOR_NOISE = (5.0, 10.0)  # standard deviation of brightness in 0..255; gives files of 3-6 MB at that quality


def list_images(folder: Path) -> list[Path]:
    """Every file below a folder, in sorted order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def take_evenly(paths: Sequence[T], count: int) -> list[T]:
    """`count` of them, evenly spaced, or all where there are fewer."""
    count = min(count, len(paths))
    return [paths[number * len(paths) // count] for number in range(count)]


def make_large_images(photos: Path, folder: Path, *, count: int, seed: int) -> Path:
    """Make `count` JPEGs of 4 x 3 photos each, enlarged to `TILE_SIDE` a side, with sensor noise; the folder.

    Each depends on the seed and its number alone; those that stand are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = list_images(photos)
    missing = [number for number in range(count) if not (folder / f"{number:05d}.jpg").exists()]

    def make(number: int) -> None:
        image = _draw_mosaic(sources, np.random.default_rng([seed, number]))
        path = folder / f"{number:05d}.jpg"
        write_atomically(path, lambda file: image.save(file, "JPEG", quality=LARGE_QUALITY))

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(make, missing))
    return folder


def _draw_mosaic(sources: Sequence[Path], random: np.random.Generator) -> Image.Image:
    chosen = random.choice(len(sources), size=TILE_COLUMNS * TILE_ROWS, replace=len(sources) < 12)
    mosaic = Image.new("RGB", (TILE_COLUMNS * TILE_SIDE, TILE_ROWS * TILE_SIDE))
    for number, source in enumerate(chosen):
        row, column = divmod(number, TILE_COLUMNS)
        with Image.open(sources[source]) as photo:
            tile = ImageOps.fit(photo.convert("RGB"), (TILE_SIDE, TILE_SIDE), Image.Resampling.BICUBIC)
        mosaic.paste(tile, (column * TILE_SIDE, row * TILE_SIDE))
    deviation = np.float32(random.uniform(*SENSOR_NOISE))
    pixels = np.asarray(mosaic).astype(np.float32)
    pixels += deviation * random.standard_normal((*pixels.shape[:2], 1), dtype=np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def read_all(paths: Sequence[Path]) -> int:
    """The bytes of files, each read once, so that no contestant waits for the disk."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        return sum(pool.map(lambda path: len(path.read_bytes()), paths))


def take_batches(things: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` things, the last one shorter."""
    remaining = iter(things)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
