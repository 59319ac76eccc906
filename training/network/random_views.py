"""Views of decoded images for the network in training: random crops and mirror images, many at once."""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from index.images.preprocess import Pixels, crop_pixels

SMALLEST = 0.2  # a window, of the image's area
NARROWEST = 3 / 4  # its sides, one to the other
COLOURED, GREY = 0.8, 0.2  # of the views
STRENGTH, HUE = (
    0.4,
    0.1,
)  # of brightness, contrast and saturation, by factors of 0.6 to 1.4; of the circle, either way


def draw_views(pixels: Pixels, rows: Tensor, *, side: int, generator: torch.Generator) -> Tensor:
    """(B, side, side, 3) uint8: a random window of each image, scaled; half are mirrored, most are recoloured.

    Windows have a fifth of the image's area to all of it, and sides of 3:4 to 4:3 (Szegedy et al. 2015). Four fifths
    change in brightness, contrast, saturation and hue, one fifth is grey (Chen et al. 2020). What a network learns at a
    smaller size holds at a larger one where things have looked as large in some of the windows (Touvron et al. 2019).

    Args:
        pixels: (N, R, R, 3) uint8.
        rows: (B,) int64 of the images.
        generator: what is drawn depends on it alone.
    """
    drawn = torch.rand(len(rows), 11, generator=generator).tolist()
    views = np.empty((len(rows), side, side, 3), dtype=np.uint8)
    for view, row, (mirror, grey, coloured, *numbers) in zip(views, rows.tolist(), drawn, strict=True):
        image = _cut_window(pixels[row], side, *numbers[:4])
        if coloured < COLOURED:
            image = _recolour(image, *numbers[4:])
        if grey < GREY:
            image = image.convert("L").convert("RGB")
        view[:] = np.asarray(image)[:, :: -1 if mirror < 0.5 else 1]
    return torch.from_numpy(views)


def _cut_window(pixels: Pixels, side: int, area: float, ratio: float, down: float, right: float) -> Image.Image:
    """Of (R, R, 3) pixels, by four numbers of 0..1."""
    whole = len(pixels)
    length = whole * math.sqrt(SMALLEST + (1 - SMALLEST) * area)
    stretch = NARROWEST ** (ratio - 0.5)
    height, width = (max(1, min(whole, round(one))) for one in (length * stretch, length / stretch))
    top, left = int(down * (whole - height + 1)), int(right * (whole - width + 1))
    window = Image.fromarray(np.ascontiguousarray(pixels[top : top + height, left : left + width]))
    return window.resize((side, side), Image.Resampling.BILINEAR)


def _recolour(
    image: Image.Image, brightness: float, contrast: float, saturation: float, hue: float
) -> Image.Image:
    """By four numbers of 0..1, 0.5 of which changes nothing."""
    for enhance, number in (
        (ImageEnhance.Brightness, brightness), (ImageEnhance.Contrast, contrast), (ImageEnhance.Color, saturation),
    ):  # fmt: skip
        image = enhance(image).enhance(1 + STRENGTH * (2 * number - 1))
    turn = round(256 * HUE * (2 * hue - 1))
    angle, *rest = image.convert("HSV").split()
    turned = angle.point([(value + turn) % 256 for value in range(256)])
    return Image.merge("HSV", (turned, *rest)).convert("RGB")


def centre_views(pixels: Pixels, rows: Tensor, *, crop: int) -> Pixels:
    """(B, crop, crop, 3) uint8: what `preprocess_image` makes of the same images."""
    margin = (pixels.shape[1] - crop) // 2
    return np.stack([crop_pixels(pixels[row], top=margin, left=margin, size=crop) for row in rows.tolist()])
