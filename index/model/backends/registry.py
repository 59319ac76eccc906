"""Every runtime that can run a model file, and the one way to open a file in one."""

from __future__ import annotations

from index.errors import ModelFileError
from index.model.backends.backend import InferenceBackend
from index.model.backends.names import USUAL_BACKEND
from index.model.backends.onnxruntime import OnnxRuntimeBackend
from index.model.backends.openvino import OpenVinoBackend
from index.model.backends.tensorrt import TensorRtBackend
from index.model.graph import UnsafeModelError, check_graph
from index.model.seal import SealedModel

BACKENDS: dict[str, type[InferenceBackend]] = {
    "onnxruntime": OnnxRuntimeBackend,
    "openvino": OpenVinoBackend,
    "tensorrt": TensorRtBackend,
}


def installed_backends() -> dict[str, str]:
    """The version of every runtime that is installed, by its name."""
    return {
        name: found
        for name, backend in BACKENDS.items()
        if (found := next(filter(None, map(_find_version, backend.packages)), None)) and backend.is_usable()
    }


def _find_version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # loads much, for who asks for the usual one only

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def open_backend(model: SealedModel, *, threads: int | None = None, name: str = USUAL_BACKEND) -> InferenceBackend:
    """Open a model in a runtime, which sees no byte of a file that does more than compute.

    Raises:
        ModelFileError: the content is no ONNX model, or one that is unsafe (see `index.model.graph`).
        MissingDependencyError: the runtime is not installed.
    """
    try:
        check_graph(model.data)
    except UnsafeModelError as error:
        problem = f"not a usable ONNX model: {error}; export the model with `retrieval export`"
        raise ModelFileError(str(model.path), problem) from error
    return BACKENDS[name](model, threads=threads)
