"""Images to embeddings with ONNX Runtime: the serving twin of the torch model, and free of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from index.errors import ImageError, ModelFileError
from index.images import MAX_PIXELS, LoadedImage, decode_image, read_image
from index.model_file import INPUT_NAME, OUTPUT_NAME, ModelContract, open_session, read_contract, runtime_errors
from index.model_seal import read_sealed
from index.preprocess import Pixels, preprocess_image

Vectors = npt.NDArray[np.float32]
UNIT_TOLERANCE = 1e-3
_CPU_BATCH, _GPU_BATCH = 8, 64


class Embedder:
    """A model file opened for inference.

    Attributes:
        contract: what the model says of itself.
        sha256: of the model file; galleries are bound to it.
        on_gpu: whether it runs on one.
        usual_batch: images at once where speed counts: few are in a CPU's caches, many keep a GPU busy.

    Args:
        model_path: an exported model.
        threads: of the runtime; None for all cores.
        sha256: what the file must be, where the caller knows.

    Raises:
        ModelFileError: the file is missing, damaged, another than the one expected, or breaks its contract.
    """

    def __init__(self, model_path: Path, *, threads: int | None = None, sha256: str | None = None) -> None:
        self.path = model_path
        model = read_sealed(model_path)
        if sha256 not in (None, model.sha256):
            problem = f"another file than expected: its SHA-256 is {model.sha256}, not {sha256}"
            raise ModelFileError(str(model_path), problem)
        self.sha256 = model.sha256
        self._session = open_session(model, threads=threads)
        self.contract: ModelContract = read_contract(self._session, path=model_path)
        self.on_gpu = "CUDAExecutionProvider" in self._session.get_providers()
        self.usual_batch = _GPU_BATCH if self.on_gpu else _CPU_BATCH

    def embed_batch(self, pixels: Pixels) -> Vectors:
        """Embed (N, crop, crop, 3) uint8 pixels to (N, D) float32 rows, unit norm where the model gave one.

        Raises:
            ModelFileError: the runtime refuses the batch.
        """
        if not len(pixels):
            return np.empty((0, self.contract.embedding_dim), dtype=np.float32)
        try:
            result = self._session.run([OUTPUT_NAME], {INPUT_NAME: np.ascontiguousarray(pixels)})[0]
        except runtime_errors() as error:
            raise ModelFileError(str(self.path), f"the model failed on {len(pixels)} images: {error}") from error
        vectors: Vectors = np.asarray(result, dtype=np.float32)
        if vectors.shape != (len(pixels), self.contract.embedding_dim):
            raise ModelFileError(str(self.path), f"the model gave shape {vectors.shape} for {len(pixels)} images")
        return vectors

    def embed_padded(self, pixels: Pixels, *, batch_size: int) -> Vectors:
        """As `embed_batch`, but run on `batch_size` images whatever their number, the missing ones black.

        The runtime then sees one input shape: it plans its memory once, and a GPU's kernels are chosen once.

        Args:
            pixels: (N, crop, crop, 3) uint8, N at most `batch_size`.
            batch_size: images in every run.

        Raises:
            ModelFileError: the runtime refuses the batch.
            ValueError: more images than `batch_size`.
        """
        count = len(pixels)
        if count > batch_size:
            raise ValueError(f"{count} images are more than a batch of {batch_size}")
        if not count or count == batch_size:
            return self.embed_batch(pixels)
        padded = np.zeros((batch_size, *pixels.shape[1:]), dtype=np.uint8)
        padded[:count] = pixels
        return self.embed_batch(padded)[:count]

    def preprocess(self, data: bytes, *, name: str, max_pixels: int = MAX_PIXELS) -> Pixels:
        """The bytes of one image file as a model input (crop, crop, 3) uint8; `name` is used in messages only.

        Raises:
            ImageError: the image cannot be used.
        """
        config = self.contract.preprocess
        image = decode_image(data, name=name, target_side=config.resize, max_pixels=max_pixels)
        return preprocess_image(image, config)

    def read_pixels(self, path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[Pixels, str]:
        """One file as a model input (crop, crop, 3) uint8 and the SHA-256 of its bytes.

        Raises:
            ImageError: the file cannot be used.
        """
        loaded: LoadedImage = read_image(path, target_side=self.contract.preprocess.resize, max_pixels=max_pixels)
        return preprocess_image(loaded.image, self.contract.preprocess), loaded.sha256

    def embed_image(self, image: Image.Image, *, name: str) -> Vectors:
        """One decoded RGB image to a (D,) float32 unit vector.

        Raises:
            ImageError: the model gives no finite unit vector for it.
        """
        vector = self.embed_batch(preprocess_image(image, self.contract.preprocess)[None])
        if not unit_rows(vector)[0]:
            raise ImageError(path=name, reason="bad-embedding", detail="the model gave no finite unit vector")
        return vector.reshape(-1)


def unit_rows(vectors: Vectors) -> npt.NDArray[np.bool_]:
    """Which rows of (N, D) are finite and of unit norm: (N,) bool."""
    with np.errstate(over="ignore", invalid="ignore"):  # values that overflow are no unit vector either
        norms: npt.NDArray[np.float32] = np.linalg.norm(vectors, axis=1)
        usable: npt.NDArray[np.bool_] = np.abs(norms - 1) <= UNIT_TOLERANCE  # False for NaN
    return usable
