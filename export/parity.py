"""Torch against ONNX Runtime on real images: a model file that drifts is never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from index.arrays import Vectors, unit_rows
from index.errors import ParityError
from index.images.preprocess import Pixels
from index.model.backends.names import USUAL_BACKEND
from index.model.embedder import Embedder
from training.backbone.pixel_model import PixelModel

MIN_COSINE = 0.99999


def check_parity(model: PixelModel, onnx_path: Path, images: Pixels, *, name: str) -> float:
    """The lowest cosine between the two models' embeddings of an image, in batches of 1 and of N, of any output.

    Args:
        model: the torch model, on the CPU.
        onnx_path: the file as it would be served.
        images: (N, crop, crop, 3) uint8.

    Raises:
        ParityError: a cosine below `MIN_COSINE`, or a row of the file's that is not finite and of unit norm.
    """
    with torch.inference_mode():
        found = model(torch.from_numpy(images))
    embedder = Embedder(onnx_path, backend=USUAL_BACKEND)
    outputs = (found,) if isinstance(found, torch.Tensor) else found
    cosines = [
        _find_lowest(embedder.giving(output), images, expected.numpy())
        for output, expected in zip(embedder.contract.widths, outputs, strict=True)
    ]
    lowest = float(np.min(cosines))  # NaN where any is
    if not lowest >= MIN_COSINE:
        raise ParityError(path=name, min_cosine=lowest, required=MIN_COSINE)
    return min(lowest, 1.0)


def _find_lowest(embedder: Embedder, images: Pixels, expected: Vectors) -> float:
    """NaN where a row is not of unit norm: a product above 1 would hide any drift."""
    batches = [
        embedder.embed_batch(images),
        np.concatenate([embedder.embed_batch(image[None]) for image in images]),
    ]
    cosines = np.concatenate([(batch.astype(np.float64) * expected).sum(axis=1) for batch in batches])
    return float(cosines.min()) if all(unit_rows(batch).all() for batch in batches) else float("nan")
