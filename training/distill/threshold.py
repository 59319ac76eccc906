"""From which cosine on two pictures are copies, by pictures that a student has not learnt from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from index.arrays import Floats
from index.images.preprocess import Pixels, PreprocessConfig
from training.backbone.backbones import arrange_images
from training.data.copies import draw_copy
from training.distill.network import TwoOutputs
from training.picture.threshold import choose_threshold

_AT_ONCE = 64


def measure_threshold(
    student: TwoOutputs, pixels: Pixels, rows: Sequence[int], *, sizes: PreprocessConfig, seed: int
) -> float:
    """Of pictures that have not taught; each is compared with one copy, and with all the others.

    Args:
        pixels: (N, R, R, 3) uint8.
        rows: of those that have not taught, at least two.
        sizes: as the student sees images.
    """
    wholes = [Image.fromarray(np.asarray(pixels[row])) for row in rows]
    edited = [
        draw_copy(image, np.random.default_rng((seed, row))) for image, row in zip(wholes, rows, strict=True)
    ]
    originals, copies = (embed_pictures(student, images, sizes=sizes) for images in (wholes, edited))
    alike = originals @ originals.T
    np.fill_diagonal(alike, -1)
    return choose_threshold((originals * copies).sum(axis=1), alike.max(axis=1))


@torch.inference_mode()
def embed_pictures(student: TwoOutputs, images: Sequence[Image.Image], *, sizes: PreprocessConfig) -> Floats:
    """(N, picture_dim) float32 unit rows of RGB images, stretched to the student's square."""
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (sizes.mean, sizes.std))
    side, found = (sizes.crop, sizes.crop), list[Tensor]()
    for start in range(0, len(images), _AT_ONCE):
        views = [image.resize(side, Image.Resampling.BILINEAR) for image in images[start : start + _AT_ONCE]]
        stacked = torch.from_numpy(np.stack([np.asarray(view) for view in views]))
        found.append(student(arrange_images(stacked, mean, std))[1])
    embedded: Floats = torch.cat(found).numpy()
    return embedded
