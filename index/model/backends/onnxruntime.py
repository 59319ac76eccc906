"""Models in ONNX Runtime: on the GPU where the installed runtime has one, else on the CPU.

Everybody who needs ONNX Runtime gets it here, after its telemetry is off, so that no way into the program is left open.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.errors import MissingDependencyError, ModelFileError
from index.images.preprocess import Pixels
from index.model.backends.backend import INPUT_NAME, OUTPUT_NAME, GraphDescription, GraphValue
from index.model.backends.cuda_libraries import load_cuda_libraries
from index.model.seal import SealedModel
from index.telemetry import switch_off_telemetry

logger = logging.getLogger(__name__)

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_ERRORS = (
    "EPFail", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException",
)  # fmt: skip


def import_onnxruntime() -> ModuleType:
    """The onnxruntime module, which reports nothing.

    Raises:
        MissingDependencyError: it is not installed.
    """
    switch_off_telemetry()
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(package="onnxruntime", extra="cpu", purpose="running a model") from error
    module: ModuleType = onnxruntime
    return module


def import_quantization() -> ModuleType:
    """The module that writes models in int8; importing it adds a folder of its own to `sys.path`, which is undone.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    import_onnxruntime()
    folders = list(sys.path)
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization import shape_inference  # noqa: F401  # which it does not load itself
    finally:
        sys.path[:] = folders
    module: ModuleType = quantization
    return module


class OnnxRuntimeBackend:
    """A session of ONNX Runtime; see `InferenceBackend`."""

    name = "onnxruntime"
    precision = "as exported"
    packages: tuple[str, ...] = ("onnxruntime", "onnxruntime-gpu")

    @classmethod
    def is_usable(cls) -> bool:
        """Whether it can be used where one of its packages is installed."""
        return True

    def __init__(self, model: SealedModel, *, threads: int | None) -> None:
        runtime = import_onnxruntime()
        state = runtime.capi.onnxruntime_pybind11_state
        # What it raises has no base of its own; a name in the graph that is no UTF-8 fails on its way to Python.
        self._errors = (*(getattr(state, name) for name in _ERRORS), UnicodeDecodeError)
        self._path, self.version = str(model.path), str(runtime.__version__)
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.inter_op_num_threads = 1
        options.intra_op_num_threads = threads or 0
        if threads is None:  # beside the threads that decode: waiting in a loop would take their time
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = self._open(runtime, model, options)
        except self._errors as error:
            raise ModelFileError(self._path, f"not a usable ONNX model: {error}") from error
        self.on_gpu = CUDA in self._session.get_providers()

    def _open(self, runtime: ModuleType, model: SealedModel, options: Any) -> Any:
        """A session on the GPU, or on the CPU and a warning why, where the installed runtime is made for both.

        The runtime's own way back to the CPU is off: it prints to stdout, and changes vectors in the middle of a run.
        """
        problem = None
        if CUDA in runtime.get_available_providers():
            problem = load_cuda_libraries(runtime)
            if problem is None:
                try:
                    session = runtime.InferenceSession(model.data, options, [CUDA, CPU], enable_fallback=0)
                except (RuntimeError, *self._errors) as error:  # a model that is at fault fails below too
                    problem = shorten(str(error))
                else:
                    if CUDA in session.get_providers():
                        return session
                    problem = "ONNX Runtime cannot load what it has for CUDA"
        session = runtime.InferenceSession(model.data, options, [CPU], enable_fallback=0)
        if problem is not None:
            logger.warning("ONNX Runtime is made for GPUs here, but %s: models run on the CPU", problem)
        return session

    def describe(self) -> GraphDescription:
        """What the session says of the graph."""
        try:
            metadata = self._session.get_modelmeta().custom_metadata_map
            inputs, outputs = _describe(self._session.get_inputs()), _describe(self._session.get_outputs())
        except UnicodeDecodeError as error:
            raise ModelFileError(self._path, f"not a usable ONNX model: {error}") from error
        return GraphDescription(metadata, inputs, outputs)

    def run(self, pixels: Pixels, outputs: Sequence[str] = (OUTPUT_NAME,)) -> Vectors:
        """Run the batch in one call of the session."""
        try:
            found = self._session.run(list(outputs), {INPUT_NAME: np.ascontiguousarray(pixels)})
        except self._errors as error:
            raise ModelFileError(self._path, f"the model failed on {len(pixels)} images: {error}") from error
        return np.asarray(found[0] if len(found) == 1 else np.concatenate(found, axis=1), dtype=np.float32)


def shorten(message: str) -> str:
    """What CUDA says, without the functions of the runtime that passed it on."""
    found = re.search(r"CUDA failure[^;\n]*", message)
    return found[0].strip() if found else message


def _describe(values: Iterable[Any]) -> list[GraphValue]:
    return [
        GraphValue(value.name, value.type, tuple(size if isinstance(size, int) else None for size in value.shape))
        for value in values
    ]
