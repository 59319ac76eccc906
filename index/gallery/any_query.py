"""Queries from Python (paths, bytes, images, arrays, vectors) as unit vectors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from index.arrays import Vectors, unit_rows
from index.errors import InputError
from index.images.decode import make_upright
from index.images.image_files import decode_image, read_bytes
from index.limits import MAX_PIXELS
from index.text import printable_path

if TYPE_CHECKING:
    from index.model.embedder import Embedder

AnyQuery: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[Any]"
"""An image by path, as bytes, of PIL, or as (H, W), (H, W, 3) or (H, W, 4) uint8; or a (D,) float vector."""


def make_vector(query: AnyQuery, *, dim: int, open_embedder: Callable[[], Embedder]) -> Vectors:
    """The (D,) float32 unit vector of a query; only an image opens the model. EXIF orientation is applied."""
    if isinstance(query, np.ndarray) and query.ndim == 1:
        if query.dtype.kind != "f" or len(query) != dim or not np.isfinite(query).all():
            raise InputError(f"a query must be {dim} finite numbers, got {len(query)} of {query.dtype}")
        return query if query.dtype == np.float32 and unit_rows(query[None])[0] else normalise(query, name="query")
    if not isinstance(query, str | os.PathLike | bytes | bytearray | memoryview | Image.Image | np.ndarray):
        raise InputError(
            f"query: expected a path, bytes, a PIL image or an array, got {type(query).__name__}; a member asks with "
            "gallery.vector(id)"
        )
    embedder = open_embedder()
    side = embedder.contract.preprocess.resize
    if isinstance(query, str | os.PathLike):
        path = Path(query)
        name, data = printable_path(path), read_bytes(path)
        return embedder.embed_image(decode_image(data, name=name, target_side=side), name=name)
    if isinstance(query, bytes | bytearray | memoryview):
        image = decode_image(bytes(query), name="query", target_side=side)
    else:
        if isinstance(query, np.ndarray):
            if query.dtype != np.uint8 or query.ndim not in (2, 3) or query.shape[2:] not in ((), (3,), (4,)):
                raise InputError(
                    "query: expected an image as uint8 of shape (H, W), (H, W, 3) or (H, W, 4), or a vector of shape "
                    f"(D,), got {query.dtype} of shape {query.shape}"
                )
            query = Image.fromarray(query)
        image = make_upright(query, name="query", target_side=side, max_pixels=MAX_PIXELS)
    return embedder.embed_image(image, name="query")


def normalise(row: npt.NDArray[np.floating], *, name: str) -> Vectors:
    """A (D,) row as a float32 unit vector."""
    exact = row.astype(np.float64)
    largest = np.abs(exact).max(initial=0)
    if not np.isfinite(largest):
        raise InputError("the vector has a number that is not finite", at=name)
    if largest == 0:
        raise InputError("the vector is zero, and has no direction", at=name)
    exact /= largest  # squares neither overflow nor vanish
    return (exact / np.linalg.norm(exact)).astype(np.float32)
