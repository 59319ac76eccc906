"""Views of an image for training: random crop and horizontal flip, after the shared decode and resize."""

from __future__ import annotations

import hashlib

import numpy as np
from PIL import Image

from index.images.preprocess import Pixels, PreprocessConfig, crop_pixels, preprocess_image, resize_image


def random_view(image: Image.Image, config: PreprocessConfig, *, generator: np.random.Generator) -> Pixels:
    """A random crop, mirrored half of the time: (crop, crop, 3) uint8 of an RGB image."""
    top, left = generator.integers(0, config.resize - config.crop + 1, size=2)
    pixels = crop_pixels(resize_image(image, config), top=int(top), left=int(left), size=config.crop)
    return pixels[:, ::-1] if generator.random() < 0.5 else pixels


def fixed_views(image: Image.Image, config: PreprocessConfig, *, count: int, sha256: str) -> Pixels:
    """(count, crop, crop, 3) uint8: the centre crop, then random views that depend on the file's content alone."""
    views = [preprocess_image(image, config)]
    for view in range(1, count):
        digest = hashlib.sha256(f"{sha256}/{view}".encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        views.append(random_view(image, config, generator=generator))
    return np.stack(views)
