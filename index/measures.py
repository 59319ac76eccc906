"""Measures of an image: columns of filters that tell blurred, dark, empty, small and heavily compressed images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

MEASURES_VERSION = 1  # of the values; raising it invalidates caches
_MOMENTS = np.arange(256.0) ** np.array([[1], [2]])  # of grey levels
_PIXELS = 1 << 16  # that are looked at, about; of larger images every n-th row and column
_UNIFORM = 16  # grey levels within a row or column of the border: compression is not exact


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of an image; None where one is unknown.

    Attributes:
        width, height: pixels of the upright image in its file.
        sharpness: variance of the Laplacian of grey levels in 0..255; 0 is one flat colour.
        brightness: mean grey level, 0 is black and 1 is white.
        contrast: standard deviation of grey levels, 0 to 0.5.
        border: share of the image in uniform rows and columns at its edges, 0 to 1.
        jpeg_quality: 1 to 100, by the quantisation table; None for other files.
    """

    width: int | None = None
    height: int | None = None
    sharpness: float | None = None
    brightness: float | None = None
    contrast: float | None = None
    border: float | None = None
    jpeg_quality: int | None = None

    def to_numbers(self) -> list[float]:
        """The measures as floats, NaN where one is unknown."""
        return [math.nan if value is None else float(value) for value in astuple(self)]

    @classmethod
    def from_numbers(cls, numbers: Iterable[float]) -> Measures:
        """The measures of `to_numbers`."""
        known = [None if math.isnan(number) else number for number in numbers]
        whole = [None if number is None else int(number) for number in (*known[:2], known[6])]
        return cls(whole[0], whole[1], known[2], known[3], known[4], known[5], whole[2])


MEASURES = tuple(field.name for field in fields(Measures))


def measure_image(image: Image.Image, width: int, height: int, jpeg_quality: int) -> Measures:
    """Measures of a decoded RGB image, whose file has this size and JPEG quality or 0; of every n-th pixel if large."""
    step = max(1, round(math.sqrt(image.width * image.height / _PIXELS)))
    if step > 1:
        image = image.resize((max(1, image.width // step), max(1, image.height // step)), 0)  # the nearest pixel
    grey = image.convert("L")
    total, squares = (int(moment) for moment in _MOMENTS @ grey.histogram())
    pixels = grey.width * grey.height
    values = np.asarray(grey)
    return Measures(
        width=width,
        height=height,
        sharpness=_find_sharpness(values),
        brightness=round(total / pixels / 255, 4),
        contrast=round(math.sqrt(pixels * squares - total**2) / pixels / 255, 4),
        border=_find_border(values),
        jpeg_quality=jpeg_quality or None,
    )


def _find_sharpness(values: np.ndarray) -> float | None:
    """Variance of the Laplacian in every second row of (H, W) uint8 grey levels; None below 3 x 3 pixels."""
    if min(values.shape) < 3:
        return None
    above, row, below = (values[start : len(values) - 2 + start : 2].astype(np.int16) for start in range(3))
    laplacian = above[:, 1:-1] + below[:, 1:-1]
    laplacian += row[:, :-2]
    laplacian += row[:, 2:]
    laplacian -= row[:, 1:-1] << 2
    flat = laplacian.ravel().astype(np.float64)  # in which sums of such integers are exact
    total, squares = int(flat.sum()), int(flat @ flat)
    return round((flat.size * squares - total**2) / flat.size**2, 2)


def _find_border(values: np.ndarray) -> float:
    """Share of (H, W) uint8 grey levels outside the smallest box without uniform rows and columns at its edges."""
    inner = values
    for axis in (1, 0):
        varied = np.flatnonzero(inner.max(axis) - inner.min(axis) > _UNIFORM)
        if not len(varied):
            return 1.0
        inner = inner[varied[0] : varied[-1] + 1] if axis else inner[:, varied[0] : varied[-1] + 1]
    return round(1 - inner.size / values.size, 4)
