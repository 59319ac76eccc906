"""Views of an image for training: random crop and horizontal flip, after the shared decode and resize."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from PIL import Image

from index.images.preprocess import Pixels, PreprocessConfig, crop_pixels, preprocess_image, resize_image
from training.data.copies import draw_copy


def random_view(image: Image.Image, config: PreprocessConfig, *, generator: np.random.Generator) -> Pixels:
    """A random crop, mirrored half of the time: (crop, crop, 3) uint8 of an RGB image."""
    top, left = generator.integers(0, config.resize - config.crop + 1, size=2)
    pixels = crop_pixels(resize_image(image, config), top=int(top), left=int(left), size=config.crop)
    return pixels[:, ::-1] if generator.random() < 0.5 else pixels


_EDITED = 4  # times the size that images are resized to: of a strip edits would make what no file can hold

DrawViews = Callable[..., Pixels]
"""Makes (count, crop, crop, 3) uint8 views of an image, as `fixed_views` does; its name is a part of what they are."""


def edited_views(image: Image.Image, config: PreprocessConfig, *, count: int, sha256: str) -> Pixels:
    """(count, crop, crop, 3) uint8: the image, then edited copies that depend on the file's content alone."""
    views = [preprocess_image(image, config)]
    image = image.copy()
    image.thumbnail((_EDITED * config.resize,) * 2)
    for view in range(1, count):
        copy = draw_copy(image, _content_generator(sha256, view))
        views.append(preprocess_image(copy, config))
    return np.stack(views)


def fixed_views(image: Image.Image, config: PreprocessConfig, *, count: int, sha256: str) -> Pixels:
    """(count, crop, crop, 3) uint8: the centre crop, then random views that depend on the file's content alone."""
    views = [preprocess_image(image, config)]
    for view in range(1, count):
        views.append(random_view(image, config, generator=_content_generator(sha256, view)))
    return np.stack(views)


def _content_generator(sha256: str, view: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{sha256}/{view}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
