"""Embedder: a model file opened for inference, without torch."""

from copy import copy
from pathlib import Path

import numpy as np
from PIL import Image

from index.arrays import Mask, Vectors, unit_rows
from index.errors import ImageError, InputError, ModelFileError
from index.images.image_files import decode_image
from index.images.preprocess import Pixels, preprocess_image
from index.limits import MAX_PIXELS
from index.model.backends.backend import USUAL_BACKEND
from index.model.backends.registry import choose_backend, open_backend
from index.model.checksum import read_model_file
from index.model.contract import GRAPH_NAMES, ModelContract, find_contract, read_contract
from index.outputs import SEMANTIC

_CPU_BATCH, _GPU_BATCH = 8, 64


class Embedder:
    """A model file opened for inference.

    Attributes:
        runtime: a description of the runtime, on which the last bits of vectors depend.
        agreement: of its embeddings with those of the usual runtime (`index.model.backends.registry`).
        outputs: side by side: `semantic`, or those of `with_outputs`.
        usual_batch: a fast batch size: few images fit a CPU's caches, many keep a GPU busy.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        threads: int | None = None,
        sha256: str | None = None,
        backend: str | None = None,
        runs: bool = True,
    ) -> None:
        self.path = model_path
        model = read_model_file(model_path)
        if sha256 not in (None, model.sha256):
            problem = f"another file than expected: its SHA-256 is {model.sha256}, not {sha256}"
            raise ModelFileError(model_path, problem)
        self.sha256 = model.sha256
        self.outputs: tuple[str, ...] = (SEMANTIC,)
        self.contract: ModelContract
        if not runs:
            contract = find_contract(model_path)
            if contract is None:
                raise ModelFileError(model_path, "damaged: it has no contract")
            self.contract, self.backend = contract, USUAL_BACKEND
            return
        name, self.agreement = choose_backend(model, backend)
        self._backend = open_backend(model, threads=threads, name=name)
        self.contract = read_contract(self._backend, path=model_path)
        self.on_gpu = self._backend.on_gpu
        self.backend, self.precision = self._backend.name, self._backend.precision
        self.runtime = f"{self.backend} {self._backend.version}, {self.precision}, {'GPU' if self.on_gpu else 'CPU'}"
        self.usual_batch = _GPU_BATCH if self.on_gpu else _CPU_BATCH

    def with_outputs(self, *outputs: str) -> "Embedder":
        """View of the opened model with other outputs."""
        if missing := [name for name in outputs if name not in self.contract.widths]:
            problem = f"the model answers by {', '.join(self.contract.widths)}, not by {missing[0]}"
            raise InputError(problem, at=self.path)
        if outputs == self.outputs:
            return self
        other = copy(self)
        other.outputs = outputs
        return other

    @property
    def width(self) -> int:
        """D, of all outputs together."""
        return sum(self.contract.widths[name] for name in self.outputs)

    def are_usable(self, vectors: Vectors) -> Mask:
        """(N,) bool: which of (N, D) rows are finite and of unit norm, in each of their outputs."""
        ends = np.cumsum([self.contract.widths[name] for name in self.outputs])
        parts: list[Vectors] = np.split(vectors, ends[:-1], axis=1)
        usable: Mask = np.all([unit_rows(part) for part in parts], axis=0)
        return usable

    def embed_batch(self, pixels: Pixels) -> Vectors:
        """Embed (N, crop, crop, 3) uint8 pixels to (N, D) float32 rows, unit norm where the model gave one."""
        if not len(pixels):
            return np.empty((0, self.width), dtype=np.float32)
        vectors = self._backend.run(pixels, [GRAPH_NAMES[name] for name in self.outputs])
        if vectors.shape != (len(pixels), self.width):
            raise ModelFileError(self.path, f"the model gave shape {vectors.shape} for {len(pixels)} images")
        return vectors

    def embed_padded(self, pixels: Pixels, *, batch_size: int) -> Vectors:
        """Embeddings of a batch, padded with black images to `batch_size`, so that the runtime plans for one shape."""
        count = len(pixels)
        if count > batch_size:
            raise ValueError(f"{count} images are more than a batch of {batch_size}")
        if not count or count == batch_size:
            return self.embed_batch(pixels)
        padded = np.zeros((batch_size, *pixels.shape[1:]), dtype=np.uint8)
        padded[:count] = pixels
        return self.embed_batch(padded)[:count]

    def preprocess(self, data: bytes, *, name: str, max_pixels: int = MAX_PIXELS) -> Pixels:
        """The bytes of an image file as a model input (crop, crop, 3) uint8; `name` is for messages."""
        return preprocess_image(self.decode(data, name=name, max_pixels=max_pixels), self.contract.preprocess)

    def decode(self, data: bytes, *, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """The bytes of an image file, decoded for `preprocess_image`."""
        return decode_image(data, name=name, target_side=self.contract.preprocess.resize, max_pixels=max_pixels)

    def embed_image(self, image: Image.Image, *, name: str) -> Vectors:
        """One decoded RGB image to a (D,) float32 unit vector."""
        vector = self.embed_batch(preprocess_image(image, self.contract.preprocess)[None])
        if not self.are_usable(vector)[0]:
            raise ImageError(path=name, reason="bad-embedding", detail="the model gave no finite unit vector")
        return vector.reshape(-1)
