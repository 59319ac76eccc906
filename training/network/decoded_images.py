"""Decoded training images in a memory-mapped file, and random views of them."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image
from torch import Tensor

from index.durable import sync_path, write_durably
from index.errors import InputError
from index.images.image_files import read_image
from index.images.preprocess import DECODING_VERSION, Pixels, PreprocessConfig, crop_pixels, resize_image
from index.progress import Progress, no_progress
from index.threads import map_ahead
from training.backbone.extract import name_content

SMALLEST = 0.625  # a window's side, of the image's


def draw_views(pixels: Pixels, rows: Tensor, *, side: int, generator: torch.Generator) -> Tensor:
    """(B, side, side, 3) uint8: a random window of each image, scaled; half are mirrored.

    Windows have five eighths of the image's side to all of it, so that things look as large as at full size in some of
    them (Touvron et al. 2019). `pixels` are (N, R, R, 3) uint8.
    """
    return cut_windows(pixels, rows, draw_windows(len(rows), generator), side=side)


def draw_windows(count: int, generator: torch.Generator) -> Tensor:
    """(count, 4) in 0..1: a window's size, its place down and right, and whether it is mirrored (below a half)."""
    return torch.rand(count, 4, generator=generator)


def cut_windows(pixels: Pixels, rows: Tensor, windows: Tensor, *, side: int) -> Tensor:
    """Views of (B, 4) drawn windows; any thread may call this."""
    views = np.empty((len(rows), side, side, 3), dtype=np.uint8)
    whole = pixels.shape[1]
    for view, row, (size, down, right, mirror) in zip(views, rows.tolist(), windows.tolist(), strict=True):
        length = round(whole * (SMALLEST + (1 - SMALLEST) * size))
        top, left = (int(share * (whole - length + 1)) for share in (down, right))
        cut = crop_pixels(pixels[row], top=top, left=left, size=length)
        window = Image.fromarray(np.ascontiguousarray(cut))
        view[:] = np.asarray(window.resize((side, side), Image.Resampling.BILINEAR))[:, :: -1 if mirror < 0.5 else 1]
    return torch.from_numpy(views)


def centre_views(pixels: Pixels, rows: Tensor, *, crop: int) -> Pixels:
    """(B, crop, crop, 3) uint8, as from `preprocess_image`."""
    margin = (pixels.shape[1] - crop) // 2
    return np.stack([crop_pixels(pixels[row], top=margin, left=margin, size=crop) for row in rows.tolist()])


_NOTED_EVERY = 512  # rows

Produce = Callable[[int], Iterator[npt.NDArray[Any]]]
"""Called with the row to begin with; gives (n, …) rows from there on, some at a time."""


@dataclass(frozen=True, slots=True)
class MappedArray:
    """Place of an array on disk.

    The name of `file` depends on all that its rows depend on. `what` are the contents in words.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: str
    what: str = "rows"

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def open(self) -> npt.NDArray[Any]:
        """Open a filled array read-only."""
        return np.memmap(self.file, dtype=self.dtype, mode="r", shape=self.shape)

    def fill(self, produce: Produce, *, progress: Progress = no_progress) -> None:
        """Write the missing rows, or wait while another process does."""
        if self.file.exists():
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            lock = self.file.with_suffix(".lock")
            with lock.open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                if not self.file.exists():
                    self._fill(produce, progress)
                lock.unlink(missing_ok=True)  # waiting processes find the file
        except OSError as error:
            problem = f"{self.what} cannot be written ({error}); free space or choose another --cache"
            raise InputError(problem, at=self.file) from error

    def _fill(self, produce: Produce, progress: Progress) -> None:
        unfinished, note = self.file.with_suffix(".part"), self.file.with_suffix(".json")
        done = 0
        if unfinished.exists() and unfinished.stat().st_size == self.bytes:
            with suppress(OSError, ValueError, TypeError):
                done = int(json.loads(note.read_text(encoding="ascii")))
        array = np.memmap(unfinished, dtype=self.dtype, mode="r+" if done else "w+", shape=self.shape)
        noted = done
        with closing(produce(done)) as parts:  # type: ignore[type-var]
            try:
                for rows in parts:
                    array[done : done + len(rows)] = rows
                    done += len(rows)
                    progress(done, len(array))
                    if done - noted >= _NOTED_EVERY:
                        noted = done
                        array.flush()
                        write_durably(note, json.dumps(done).encode())
            finally:
                array.flush()
                write_durably(note, json.dumps(done).encode())
        sync_path(unfinished)
        unfinished.replace(self.file)
        note.unlink(missing_ok=True)


def require_space(arrays: Sequence[MappedArray], *, what: str, instead: str) -> None:
    """Refuse arrays in one folder for which the disk has no room; `what` and `instead` are for the message."""
    missing = [array for array in arrays if not array.file.exists()]
    if not missing:
        return
    folder = missing[0].file.parent
    folder.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(folder).free, sum(array.bytes for array in missing)
    if needed > free:
        raise InputError(f"{what} take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; {instead}", at=folder)


def place_decoded(hashes: Sequence[str], preprocess: PreprocessConfig, *, cache: Path) -> MappedArray:
    """Place of the decoded (N, side, side, 3) uint8 images, by content, order and size, so that runs share it."""
    side, decoding = preprocess.resize, f"{DECODING_VERSION}, Pillow {PIL.__version__}"
    name = name_content({"resize": side, "interpolation": preprocess.interpolation, "decoding": decoding}, hashes)
    shape = (len(hashes), side, side, 3)
    return MappedArray(cache / "decoded" / f"{side}-{name}.pixels", shape, "uint8", "decoded images")


def require_room(decoded: MappedArray) -> None:
    """Refuse images for which the disk has no room."""
    images, side = decoded.shape[:2]
    require_space(
        [decoded],
        what=f"{images:,} decoded images of {side} pixels a side",
        instead="choose another --cache, or a smaller --resize",
    )


def decode_images(
    paths: Sequence[Path],
    decoded: MappedArray,
    preprocess: PreprocessConfig,
    *,
    workers: int,
    progress: Progress = no_progress,
) -> Pixels:
    """(N, resize, resize, 3) uint8, mapped read-only, at a place from `place_decoded`; an interrupted call goes on."""

    def read(path: Path) -> Pixels:
        return resize_image(read_image(path, target_side=preprocess.resize), preprocess)

    def produce(done: int) -> Iterator[Pixels]:
        with closing(map_ahead(read, paths[done:], workers=workers, ahead=64)) as images:
            for image in images:
                yield image[None]

    require_room(decoded)
    decoded.fill(produce, progress=progress)
    return decoded.open()
