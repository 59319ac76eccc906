"""`InferenceBackend`, the interface of runtimes. A new one is a class in a file, and its line in the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the commands' help loads no numpy
    from index.arrays import Vectors
    from index.images.preprocess import Pixels
    from index.model.checksum import ModelFile

VARIABLE = "RETRIEVAL_BACKEND"
"""The environment variable of the default runtime; `--backend` sets it for one command."""
USUAL_BACKEND = "onnxruntime"
AUTO = "auto"
NAMES = (USUAL_BACKEND, "openvino")
INPUT_NAME = "images"
OUTPUT_NAME, COPY_NAME, UNTRAINED_NAME = "embeddings", "copy", "untrained"


@dataclass(frozen=True, slots=True)
class GraphValue:
    """An input or output of a graph: its name, its type as `tensor(uint8)`, its shape with None where it is dynamic."""

    name: str
    type: str
    shape: tuple[int | None, ...]


class InferenceBackend(Protocol):
    """A model opened in one runtime; any number of threads may call `run`.

    Attributes:
        name: of the runtime in the registry.
        precision: of the computation; `as exported` for the model's own.
        packages: any of which installs the runtime.
    """

    name: str
    version: str
    precision: str
    on_gpu: bool
    packages: tuple[str, ...]
    metadata: Mapping[str, str]
    inputs: list[GraphValue]
    outputs: list[GraphValue]

    def __init__(self, model: ModelFile, *, threads: int | None) -> None:
        """Open the bytes of a model whose graph was checked; `threads` of one run, None for all cores."""

    def run(self, pixels: Pixels, outputs: Sequence[str] = (OUTPUT_NAME,)) -> Vectors:
        """(N, side, side, 3) uint8 pixels to (N, D) float32, N at least 1, of the named outputs side by side."""
