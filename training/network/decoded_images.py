"""All training images decoded once, at the size that training crops from, in one file that is mapped into memory."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL

from index.durable import sync_path, write_durably
from index.errors import InputError
from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, resize_image
from index.progress import Progress, no_progress
from index.threads import map_ahead
from training.backbone.extract import DECODING_VERSION

logger = logging.getLogger(__name__)
_NOTED_EVERY = 512  # images


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """Where images will lie decoded, and how many bytes they take."""

    file: Path
    images: int
    side: int

    @classmethod
    def of(cls, hashes: Sequence[str], preprocess: PreprocessConfig, *, cache: Path) -> DecodingPlan:
        """The file depends on the images' content, their order and their size: runs share it."""
        size = {"resize": preprocess.resize, "interpolation": preprocess.interpolation}
        how = json.dumps({**size, "decoding": f"{DECODING_VERSION}, Pillow {PIL.__version__}"}, sort_keys=True)
        digest = hashlib.sha256(how.encode())
        for sha256 in hashes:
            digest.update(sha256.encode())
        name = f"{preprocess.resize}-{digest.hexdigest()[:16]}.pixels"
        return cls(cache / "decoded" / name, len(hashes), preprocess.resize)

    @property
    def bytes(self) -> int:
        """Of the file."""
        return self.images * self.side * self.side * 3

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, side, side, 3)"""
        return (self.images, self.side, self.side, 3)

    def require_space(self) -> None:
        """Refuse before any decoding what the disk cannot take.

        Raises:
            InputError: with the bytes needed and those free.
        """
        if self.file.exists():
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.file.parent).free
        if self.bytes > free:
            raise InputError(
                f"{self.file.parent}: {self.images:,} decoded images of {self.side} pixels a side take "
                f"{self.bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; choose another --cache, or a smaller "
                "--resize"
            )


def decode_images(
    paths: Sequence[Path],
    plan: DecodingPlan,
    preprocess: PreprocessConfig,
    *,
    workers: int,
    progress: Progress = no_progress,
) -> Pixels:
    """(N, resize, resize, 3) uint8, mapped read-only; what an interrupted call has decoded is not decoded again.

    Args:
        paths: of the images that the plan is of, in its order.
        progress: called with (images done, images).

    Raises:
        InputError: the cache folder cannot be written, or has no space.
        ImageError: an image that was readable is so no more.
    """
    if not plan.file.exists():
        plan.require_space()
        try:
            _fill(paths, plan, preprocess, workers=workers, progress=progress)
        except OSError as error:
            raise InputError(
                f"{plan.file}: decoded images cannot be written ({error}); free space or choose another --cache"
            ) from error
    return np.memmap(plan.file, dtype=np.uint8, mode="r", shape=plan.shape)


def _fill(
    paths: Sequence[Path], plan: DecodingPlan, preprocess: PreprocessConfig, *, workers: int, progress: Progress
) -> None:
    """Several writers may fill the same file: they write the same pixels."""
    unfinished, note = plan.file.with_suffix(".part"), plan.file.with_suffix(".json")
    done = _read_note(note) if unfinished.exists() and unfinished.stat().st_size == plan.bytes else 0
    pixels = np.memmap(unfinished, dtype=np.uint8, mode="r+" if done else "w+", shape=plan.shape)

    def read(path: Path) -> Pixels:
        return resize_image(read_image(path, target_side=preprocess.resize).image, preprocess)

    decoded = map_ahead(read, paths[done:], workers=workers, ahead=64)
    try:
        for row, image in enumerate(decoded, start=done):
            pixels[row] = image
            done = row + 1
            progress(done, plan.images)
            if done % _NOTED_EVERY == 0:
                pixels.flush()
                write_durably(note, json.dumps(done).encode())
    finally:
        decoded.close()
        pixels.flush()
        write_durably(note, json.dumps(done).encode())
    sync_path(unfinished)
    with suppress(FileNotFoundError):  # another writer was sooner
        unfinished.replace(plan.file)
    note.unlink(missing_ok=True)


def _read_note(note: Path) -> int:
    try:
        return int(json.loads(note.read_text(encoding="ascii")))
    except (OSError, ValueError, TypeError):
        return 0
