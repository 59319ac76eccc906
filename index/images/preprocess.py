"""Preprocessing of a decoded image to a model input, and the perceptual hash."""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from index.arrays import Ids
from index.errors import InputError

_SIDE = 32  # of the transformed grey image
_FREQUENCIES = 8  # the lowest of either direction
_DECIMALS = 6  # of a coefficient of grey values in 0..255, far above rounding errors

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
Pixels = npt.NDArray[np.uint8]
_STRIP = 50  # times as high as wide, or more; Pillow draws its own line at 100
DECODING_VERSION = 1  # of decoding, resizing, views and hash; raising it invalidates caches


@dataclass(frozen=True, slots=True)
class PreprocessConfig:
    """Preprocessing parameters; part of the model's contract.

    The image is stretched to `resize` x `resize` (the paper's protocol), then cropped to the centre `crop` x `crop`.
    The model's graph applies `mean` and `std` (RGB, for values in [0, 1]).
    """

    resize: int = 256
    crop: int = 224
    interpolation: str = "bilinear"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 4096:
                raise InputError(f"preprocess.{name} must be a whole number of pixels in 1..4096, got {value!r}")
        if self.crop > self.resize:
            raise InputError(f"preprocess.crop ({self.crop}) must not exceed preprocess.resize ({self.resize})")
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(sorted(INTERPOLATIONS))
            raise InputError(f"preprocess.interpolation must be one of {known}, got {self.interpolation!r}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3 or not all(isinstance(v, (int, float)) and np.isfinite(v) for v in values):
                raise InputError(f"preprocess.{name} must be three finite numbers, got {values!r}")
        if min(self.std) <= 0:
            raise InputError(f"preprocess.std must be positive, got {self.std!r}")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PreprocessConfig":
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise InputError(f"preprocess must have exactly the keys {sorted(known)}, got {sorted(values)}")
        try:
            triples = {name: tuple(values[name]) for name in ("mean", "std")}
        except TypeError as error:
            raise InputError(f"preprocess.mean and preprocess.std must be lists: {error}") from error
        return cls(**{**values, **triples})


def resize_image(image: Image.Image, config: PreprocessConfig) -> Pixels:
    """Stretch an RGB image to (resize, resize, 3) uint8, antialiased."""
    size = (config.resize, config.resize)
    if image.size != size:
        image = image.resize(size, INTERPOLATIONS[config.interpolation])
    return np.asarray(image, dtype=np.uint8)


def crop_pixels(pixels: Pixels, *, top: int, left: int, size: int) -> Pixels:
    """The (size, size, 3) window of (H, W, 3) pixels whose upper left corner is (top, left)."""
    return pixels[top : top + size, left : left + size]


def preprocess_image(image: Image.Image, config: PreprocessConfig) -> Pixels:
    """One RGB image to one model input: (crop, crop, 3) uint8, the centre of what `resize_image` gives."""
    margin = (config.resize - config.crop) // 2
    # Pillow's box has 24 bits, which are exact where `resize` is a power of two. For very high images Pillow may change
    # the order of rows and columns.
    (width, height), side = image.size, config.resize
    if margin and side.bit_count() == 1 and max(width, height) * side <= 1 << 24 and height <= _STRIP * width:
        return _resize_centre(image, config, margin=margin)
    return crop_pixels(resize_image(image, config), top=margin, left=margin, size=config.crop)


def _resize_centre(image: Image.Image, config: PreprocessConfig, *, margin: int) -> Pixels:
    """Resize the centre alone, with exactly the pixels of the whole resized image."""
    (left, right, width, x), (top, bottom, height, y) = (
        (0.0, float(side), side, margin)  # no work for Pillow, as long as nothing is cut off it
        if side == config.resize
        else (margin * side / config.resize, (margin + config.crop) * side / config.resize, config.crop, 0)
        for side in image.size
    )
    centre = image.resize((width, height), INTERPOLATIONS[config.interpolation], box=(left, top, right, bottom))
    return crop_pixels(np.asarray(centre, dtype=np.uint8), top=y, left=x, size=config.crop)


def perceptual_hash(pixels: Pixels) -> int:
    """The 64-bit DCT hash of (H, W, 3) uint8 pixels, as a signed integer.

    The grey image is reduced to 32 x 32 by area. The 8 x 8 lowest frequencies of its two-dimensional cosine transform
    give a bit each, set above their median, row by row, highest bit first (the "pHash" of C. Zauner, Implementation and
    Benchmarking of Perceptual Image Hash Functions, 2010). Half of the bits are set, so two hashes differ in an even
    number of bits. All images of one colour have the same hash, up to one bit for black.
    """
    grey = Image.fromarray(pixels).convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    basis = _basis()
    lowest = (basis @ np.asarray(grey, dtype=np.float64) @ basis.T).round(_DECIMALS).ravel()
    ordered = np.sort(lowest)
    middle = len(ordered) // 2
    bits = lowest > (ordered[middle - 1] + ordered[middle]) / 2
    return int.from_bytes(np.packbits(bits).tobytes(), "big", signed=True)


def hamming_distances(hashes: Ids, others: Ids | int) -> npt.NDArray[np.uint8]:
    """Hamming distances of int64 hashes to others, or to one: uint8 in 0..64, broadcast."""
    different = np.bitwise_xor(hashes, np.asarray(others, dtype=np.int64))
    return np.bitwise_count(different.view(np.uint64))  # unsigned: NumPy counts bits of the magnitude


@functools.cache
def _basis() -> npt.NDArray[np.float64]:
    """(8, 32) float64: the orthonormal cosines of the lowest frequencies (DCT-II)."""
    frequency = np.arange(_FREQUENCIES)[:, None]
    angles = np.pi / _SIDE * (np.arange(_SIDE) + 0.5) * frequency
    cosines: npt.NDArray[np.float64] = np.cos(angles) * np.sqrt(2 / _SIDE)
    cosines[0] /= np.sqrt(2)
    return cosines
