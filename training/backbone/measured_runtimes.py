"""How fast each runtime computes a backbone's features on this machine, and how far they are torch's in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from index.arrays import Vectors
from index.errors import ImageError, InputError
from index.images.image_files import read_image
from index.images.preprocess import Pixels, preprocess_image
from index.model.backends.measuring import Measured, Rivals, measure_installed
from index.model.seal import SealedModel
from training.backbone.extract import Extractor
from training.backbone.freed_memory import keep_freed_memory
from training.options.runtimes import GRAPH_RUNTIMES, TORCH

# Of features with torch's in float32: a mean cosine, less the mean. Those in float32 have 1.0000; those in bfloat16,
# torch's own among them, .9976 to .9987.
LEAST_AGREEMENT, LEAST_IN_BFLOAT16 = 0.9999, 0.995
_IMAGES = 16


def agrees(measured: Measured) -> bool:
    """Whether features by this runtime stand for torch's."""
    return measured.agreement >= (LEAST_IN_BFLOAT16 if measured.precision == "bfloat16" else LEAST_AGREEMENT)


def measure_runtimes(extractor: Extractor, graph: SealedModel, paths: Sequence[Path]) -> dict[str, Measured]:
    """Torch, and the runtimes that are installed and take the graph, on some images of a list.

    What is found is kept for the graph and the processor, as that of model files is.

    Args:
        extractor: of torch.
        graph: of `training.backbone.kept_graphs.keep_graph`.

    Raises:
        ModelFileError: the graph cannot be used, or torch's features are not finite.
        MissingDependencyError: ONNX Runtime is not installed.
        InputError: no image is readable.
    """
    exact = Extractor(extractor.backbone, extractor.preprocess, device=extractor.device, precision="float32")
    rivals = Rivals({TORCH: InTorch(extractor)}, partial(read_some, paths, extractor), InTorch(exact).run)
    with keep_freed_memory():
        found = measure_installed(graph, rivals=rivals)
    return {name: one for name, one in found.items() if name in (TORCH, *GRAPH_RUNTIMES)}


class InTorch:
    """An extractor among the runtimes that are measured."""

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self.version, self.precision = str(torch.__version__), extractor.precision

    def run(self, pixels: Pixels) -> Vectors:
        """(N, H, W, 3) uint8 to (N, F) float32."""
        found: Vectors = self._extractor.extract(pixels).cpu().numpy()
        return found


def read_some(paths: Sequence[Path], extractor: Extractor) -> Pixels:
    """(n, crop, crop, 3) uint8 of at most 16 readable images from all over a list.

    Raises:
        InputError: none is readable.
    """
    step = max(1, len(paths) // _IMAGES)
    spread = (paths[row] for first in range(step) for row in range(first, len(paths), step))
    found = list(islice(_readable(spread, extractor), _IMAGES))
    if not found:
        raise InputError(f"none of the {len(paths)} images is readable")
    return np.stack(found)


def _readable(paths: Iterator[Path], extractor: Extractor) -> Iterator[Pixels]:
    config = extractor.preprocess
    for path in paths:
        try:
            image = read_image(path, target_side=config.resize).image
        except ImageError:
            continue
        yield preprocess_image(image, config)
