"""Views of decoded images for the network in training: random crops and mirror images, many at once."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from index.images.preprocess import Pixels, crop_pixels

SMALLEST = 0.625  # a window's side, of the image's


def draw_views(pixels: Pixels, rows: Tensor, *, side: int, generator: torch.Generator) -> Tensor:
    """(B, side, side, 3) uint8: a random window of each image, scaled; half are mirrored.

    Windows have five eighths of the image's side to all of it. What a network learns at a smaller size holds at a
    larger one where things have looked as large in some of the windows (Touvron et al. 2019).

    Args:
        pixels: (N, R, R, 3) uint8.
        rows: (B,) int64 of the images.
        generator: what is drawn depends on it alone.
    """
    return cut_windows(pixels, rows, draw_windows(len(rows), generator), side=side)


def draw_windows(count: int, generator: torch.Generator) -> Tensor:
    """(count, 4) in 0..1: a window's size, its place down and right, and whether it is mirrored (below a half)."""
    return torch.rand(count, 4, generator=generator)


def cut_windows(pixels: Pixels, rows: Tensor, windows: Tensor, *, side: int) -> Tensor:
    """What `draw_views` gives, of (B, 4) windows that were drawn; any thread may do this part."""
    views = np.empty((len(rows), side, side, 3), dtype=np.uint8)
    for view, row, (size, down, right, mirror) in zip(views, rows.tolist(), windows.tolist(), strict=True):
        window = _cut_window(pixels[row], size, down, right)
        view[:] = np.asarray(window.resize((side, side), Image.Resampling.BILINEAR))[
            :, :: -1 if mirror < 0.5 else 1
        ]
    return torch.from_numpy(views)


def _cut_window(pixels: Pixels, size: float, down: float, right: float) -> Image.Image:
    """Of (R, R, 3) pixels, by three numbers of 0..1."""
    whole = len(pixels)
    length = round(whole * (SMALLEST + (1 - SMALLEST) * size))
    top, left = (int(share * (whole - length + 1)) for share in (down, right))
    return Image.fromarray(np.ascontiguousarray(crop_pixels(pixels, top=top, left=left, size=length)))


def centre_views(pixels: Pixels, rows: Tensor, *, crop: int) -> Pixels:
    """(B, crop, crop, 3) uint8: what `preprocess_image` makes of the same images."""
    margin = (pixels.shape[1] - crop) // 2
    return np.stack([crop_pixels(pixels[row], top=margin, left=margin, size=crop) for row in rows.tolist()])
