"""`InferenceBackend`: what runs a model file. A new runtime is one class in a file, and its line in the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from index.arrays import Vectors
from index.images.preprocess import Pixels
from index.model.checksum import ModelFile

INPUT_NAME = "images"
OUTPUT_NAME, COPY_NAME, UNTRAINED_NAME = "embeddings", "copy", "untrained"


@dataclass(frozen=True, slots=True)
class GraphValue:
    """An input or output of a graph: its name, its type as `tensor(uint8)`, its shape with None where it is dynamic."""

    name: str
    type: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class GraphDescription:
    """What an opened graph says of itself."""

    metadata: Mapping[str, str]
    inputs: Sequence[GraphValue]
    outputs: Sequence[GraphValue]


class InferenceBackend(Protocol):
    """A model opened in one runtime; any number of threads may call `run`.

    Attributes:
        name: of the runtime, as the registry has it.
        version: of the runtime.
        precision: the numbers it computes with; `as exported` where it takes the model's own.
        packages: any of which brings the runtime.
    """

    name: str
    version: str
    precision: str
    on_gpu: bool
    packages: tuple[str, ...]

    @classmethod
    def is_usable(cls) -> bool:
        """Whether it can be used on this machine, where one of its packages is installed."""

    def __init__(self, model: ModelFile, *, threads: int | None) -> None:
        """Open a model whose graph was checked.

        Args:
            model: its bytes, all that may be read of it.
            threads: for one run; None for all cores.

        Raises:
            ModelFileError: the runtime cannot use it.
            MissingDependencyError: the runtime is not installed.
        """

    def describe(self) -> GraphDescription:
        """The graph's metadata, inputs and outputs."""

    def run(self, pixels: Pixels, outputs: Sequence[str] = (OUTPUT_NAME,)) -> Vectors:
        """(N, side, side, 3) uint8 pixels to (N, D) float32 embeddings, N at least 1.

        Args:
            outputs: names of the graph's; theirs lie side by side. What no other one needs is not computed.
        """
