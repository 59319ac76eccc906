"""The images of `benchmarks.indexing`: a sample of photos, 12-megapixel photos, and shards of small images."""

from __future__ import annotations

import io
import itertools
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from benchmarks.common.record import write_atomically
from index.threads import usable_cores

Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")

TILE_COLUMNS, TILE_ROWS = 4, 3
TILE_SIDE = 1000
LARGE_QUALITY = 90
SENSOR_NOISE = (5.0, 10.0)  # standard deviation of brightness in 0..255; gives files of 3-6 MB at that quality
SMALL_QUALITY = 90
MOST_SHIFT = 6  # pixels


def list_images(folder: Path) -> list[Path]:
    """Every file below a folder, in sorted order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def take_evenly(paths: Sequence[T], count: int) -> list[T]:
    """`count` of them, evenly spaced, or all where there are fewer."""
    count = min(count, len(paths))
    return [paths[number * len(paths) // count] for number in range(count)]


def sample_photos(photos: Path, folder: Path, *, count: int) -> Path:
    """Copy `count` photos, evenly spaced, to a folder of the same class folders; the folder."""
    for path in take_evenly(list_images(photos), count):
        copy = folder / path.relative_to(photos)
        if not copy.exists():
            write_atomically(copy, lambda file, path=path: file.write(path.read_bytes()))
    return folder


def make_large_images(photos: Path, folder: Path, *, count: int, seed: int, tile_side: int = TILE_SIDE) -> Path:
    """Make `count` JPEGs of 4 x 3 photos each, enlarged to `tile_side` a side, with sensor noise; the folder.

    Each depends on the seed and its number alone; those that stand are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = list_images(photos)
    missing = [number for number in range(count) if not (folder / f"{number:05d}.jpg").exists()]

    def make(number: int) -> None:
        image = _draw_mosaic(sources, np.random.default_rng([seed, number]), tile_side=tile_side)
        path = folder / f"{number:05d}.jpg"
        write_atomically(path, lambda file: image.save(file, "JPEG", quality=LARGE_QUALITY))

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(make, missing))
    return folder


def _draw_mosaic(sources: Sequence[Path], random: np.random.Generator, *, tile_side: int) -> Image.Image:
    chosen = random.choice(len(sources), size=TILE_COLUMNS * TILE_ROWS, replace=len(sources) < 12)
    mosaic = Image.new("RGB", (TILE_COLUMNS * tile_side, TILE_ROWS * tile_side))
    for number, source in enumerate(chosen):
        row, column = divmod(number, TILE_COLUMNS)
        with Image.open(sources[source]) as photo:
            tile = ImageOps.fit(photo.convert("RGB"), (tile_side, tile_side), Image.Resampling.BICUBIC)
        mosaic.paste(tile, (column * tile_side, row * tile_side))
    deviation = np.float32(random.uniform(*SENSOR_NOISE))
    pixels = np.asarray(mosaic).astype(np.float32)
    pixels += deviation * random.standard_normal((*pixels.shape[:2], 1), dtype=np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make_small_images(
    archives: Sequence[Path], folder: Path, *, count: int, shard_images: int, seed: int, in_tars: bool = True
) -> list[Path]:
    """Make `count` small JPEGs, no two of the same bytes: shifted, mirrored, brightened copies of those in tar files.

    Tar shards hold `shard_images` pairs of NAME.jpg and NAME.json, which has the label, as WebDataset writes them.
    Otherwise each shard is a folder with label folders in it. Shards that stand are kept.

    Returns:
        The shards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources: list[tuple[str, bytes]] = []
    shards = []
    for number, first in enumerate(range(0, count, shard_images)):
        shard = folder / (f"small-{number:05d}.tar" if in_tars else f"small-{number:05d}")
        shards.append(shard)
        if shard.exists():
            continue
        sources = sources or [member for archive in archives for member in _read_members(archive)]
        keys = range(first, min(first + shard_images, count))
        images = ((key, *_change(sources[key % len(sources)], key, seed=seed)) for key in keys)
        if in_tars:
            write_atomically(shard, partial(_write_tar, images))
        else:
            _write_folder(images, shard)
    return shards


def _read_members(archive: Path) -> list[tuple[str, bytes]]:
    """(first folder, bytes) of every file in a tar file."""
    with tarfile.open(archive) as tar:
        files = [(member.name, tar.extractfile(member)) for member in tar if member.isfile()]
        return [(name.removeprefix("./").partition("/")[0], file.read()) for name, file in files if file]


def _change(source: tuple[str, bytes], key: int, *, seed: int) -> tuple[str, bytes]:
    """The label, and a JPEG that depends on the seed and the key."""
    label, data = source
    random = np.random.default_rng([seed, key])
    with Image.open(io.BytesIO(data)) as image:
        pixels: Pixels = np.asarray(image.convert("RGB"))
    if random.random() < 0.5:
        pixels = pixels[:, ::-1]
    top, left = random.integers(0, 2 * MOST_SHIFT + 1, size=2)
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((MOST_SHIFT, MOST_SHIFT), (MOST_SHIFT, MOST_SHIFT), (0, 0)), mode="reflect")
    shifted = padded[top : top + height, left : left + width].astype(np.float32)
    brightened = (shifted * random.uniform(0.8, 1.2) + random.uniform(-15, 15)).clip(0, 255).astype(np.uint8)
    written = io.BytesIO()
    # The comment makes the bytes differ even where two pictures are one colour all over.
    Image.fromarray(brightened).save(written, "JPEG", quality=SMALL_QUALITY, comment=f"{key}".encode())
    return label, written.getvalue()


def _write_tar(images: Iterator[tuple[int, str, bytes]], file: BinaryIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as tar:
        for key, label, data in images:
            described = json.dumps({"label": label, "key": key}).encode()
            for suffix, content in (("jpg", data), ("json", described)):
                member = tarfile.TarInfo(f"{key:09d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _write_folder(images: Iterator[tuple[int, str, bytes]], shard: Path) -> None:
    temporary = shard.with_name(f".{shard.name}.{os.getpid()}")
    for key, label, data in images:
        path = temporary / label / f"{key:09d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    temporary.replace(shard)


def read_all(paths: Sequence[Path]) -> int:
    """Read files once, so that no contestant is the one to wait for the disk; their bytes."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        return sum(pool.map(lambda path: len(path.read_bytes()), paths))


def take_batches(things: Iterable[T], size: int) -> Iterator[list[T]]:
    """`size` of them after another, the last time what is left."""
    remaining = iter(things)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
