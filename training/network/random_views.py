"""Views of decoded images for the network in training: random crops and mirror images, many at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from index.images.preprocess import Pixels, crop_pixels


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


def centre_views(pixels: Pixels, rows: Tensor, *, crop: int) -> Pixels:
    """(B, crop, crop, 3) uint8: what `preprocess_image` makes of the same images."""
    margin = (pixels.shape[1] - crop) // 2
    return np.stack([crop_pixels(pixels[row], top=margin, left=margin, size=crop) for row in rows.tolist()])
