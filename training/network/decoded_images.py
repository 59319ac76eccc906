"""All training images decoded once, at the size that training crops from, in one file that is mapped into memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import PIL

from index.errors import InputError
from index.images.image_files import read_image
from index.images.preprocess import DECODING_VERSION, Pixels, PreprocessConfig, resize_image
from index.progress import Progress, no_progress
from index.threads import map_ahead
from training.network.mapped_files import MappedArray, require_space


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
    def array(self) -> MappedArray:
        """(N, side, side, 3) uint8"""
        return MappedArray(self.file, (self.images, self.side, self.side, 3), "uint8")

    @property
    def bytes(self) -> int:
        """Of the file."""
        return self.array.bytes

    def require_space(self) -> None:
        """Refuse before any decoding what the disk cannot take.

        Raises:
            InputError: with the bytes needed and those free.
        """
        require_space(
            [self.array],
            what=f"{self.images:,} decoded images of {self.side} pixels a side",
            instead="choose another --cache, or a smaller --resize",
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

    def read(path: Path) -> Pixels:
        return resize_image(read_image(path, target_side=preprocess.resize).image, preprocess)

    def produce(done: int) -> Iterator[Pixels]:
        with closing(map_ahead(read, paths[done:], workers=workers, ahead=64)) as decoded:
            for image in decoded:
                yield image[None]

    plan.require_space()
    try:
        plan.array.fill(produce, progress=progress)
    except OSError as error:
        raise InputError(
            f"{plan.file}: decoded images cannot be written ({error}); free space or choose another --cache"
        ) from error
    return plan.array.open()
