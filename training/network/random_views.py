"""Views of decoded images for the network in training: random crops and mirror images, many at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from index.images.preprocess import Pixels, crop_pixels

DrawViews = Callable[..., Tensor]
"""Called with pixels, rows and `generator` as `draw_views` is; gives (B, side, side, 3) uint8."""


def choose_views(*, crop: int, side: int | None) -> DrawViews:
    """Views of the `crop` that the network takes; smaller ones of `side`, where it is to train on these."""
    return partial(draw_views, crop=crop) if side is None else partial(draw_zoomed_views, side=side)


def draw_views(pixels: Pixels, rows: Tensor, *, crop: int, generator: torch.Generator) -> Tensor:
    """(B, crop, crop, 3) uint8: a random crop of every image, mirrored half of the time.

    Where the crop is the whole image it is only mirrored.

    Args:
        pixels: (N, R, R, 3) uint8.
        rows: (B,) int64 of the images.
        generator: what is drawn depends on it alone.
    """
    margin = pixels.shape[1] - crop + 1
    corners = torch.randint(margin, (len(rows), 2), generator=generator).tolist()
    mirrored = (torch.rand(len(rows), generator=generator) < 0.5).tolist()
    views = np.empty((len(rows), crop, crop, 3), dtype=np.uint8)
    for view, row, (top, left), flip in zip(views, rows.tolist(), corners, mirrored, strict=True):
        window = crop_pixels(pixels[row], top=top, left=left, size=crop)
        view[:] = window[:, ::-1] if flip else window
    return torch.from_numpy(views)


def draw_zoomed_views(pixels: Pixels, rows: Tensor, *, side: int, generator: torch.Generator) -> Tensor:
    """(B, side, side, 3) uint8: a random window of each image, of `side` to R pixels, scaled; half are mirrored.

    What a network learns at a smaller size holds at a larger one where things have looked as large in some of the
    windows (Touvron et al. 2019).

    Args:
        pixels, rows, generator: as of `draw_views`.
    """
    whole = pixels.shape[1]
    sizes = torch.randint(side, whole + 1, (len(rows),), generator=generator)
    places = torch.rand(len(rows), 2, generator=generator)
    corners = (places * (whole - sizes + 1)[:, None]).long().tolist()
    mirrored = (torch.rand(len(rows), generator=generator) < 0.5).tolist()
    views = np.empty((len(rows), side, side, 3), dtype=np.uint8)
    for view, row, size, (top, left), flip in zip(
        views, rows.tolist(), sizes.tolist(), corners, mirrored, strict=True
    ):
        window = Image.fromarray(np.ascontiguousarray(crop_pixels(pixels[row], top=top, left=left, size=size)))
        scaled = np.asarray(window if size == side else window.resize((side, side), Image.Resampling.BILINEAR))
        view[:] = scaled[:, ::-1] if flip else scaled
    return torch.from_numpy(views)


def centre_views(pixels: Pixels, rows: Tensor, *, crop: int) -> Pixels:
    """(B, crop, crop, 3) uint8: what `preprocess_image` makes of the same images."""
    margin = (pixels.shape[1] - crop) // 2
    return np.stack([crop_pixels(pixels[row], top=margin, left=margin, size=crop) for row in rows.tolist()])
