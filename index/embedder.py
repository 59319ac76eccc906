"""Images to embeddings with ONNX Runtime: the serving twin of the torch model, and free of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from index.errors import ImageError, ModelFileError
from index.images import MAX_PIXELS, LoadedImage, read_image
from index.model_file import INPUT_NAME, OUTPUT_NAME, ModelContract, hash_file, open_session, read_contract
from index.preprocess import Pixels, preprocess_image

Vectors = npt.NDArray[np.float32]
UNIT_TOLERANCE = 1e-3


class Embedder:
    """A model file opened for inference.

    Attributes:
        contract: what the model says of itself.
        sha256: of the model file, hashed here unless the caller has just done so; galleries are bound to it.

    Raises:
        ModelFileError: the file is missing, no ONNX model, or breaks its contract.
    """

    def __init__(self, model_path: Path, *, threads: int | None = None, sha256: str | None = None) -> None:
        self.path = model_path
        self._session = open_session(model_path, threads=threads)
        self.contract: ModelContract = read_contract(self._session, path=model_path)
        self.sha256 = sha256 or hash_file(model_path)

    def embed_batch(self, pixels: Pixels) -> Vectors:
        """Embed (N, crop, crop, 3) uint8 pixels to (N, D) float32 rows, unit norm where the model gave one.

        Raises:
            ModelFileError: the runtime refuses the batch.
        """
        if not len(pixels):
            return np.empty((0, self.contract.embedding_dim), dtype=np.float32)
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

        try:
            result = self._session.run([OUTPUT_NAME], {INPUT_NAME: np.ascontiguousarray(pixels)})[0]
        except (Fail, InvalidArgument, RuntimeException) as error:
            raise ModelFileError(str(self.path), f"the model failed on {len(pixels)} images: {error}") from error
        vectors: Vectors = np.asarray(result, dtype=np.float32)
        if vectors.shape != (len(pixels), self.contract.embedding_dim):
            raise ModelFileError(str(self.path), f"the model gave shape {vectors.shape} for {len(pixels)} images")
        return vectors

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
