"""ONNX Runtime backend, on the GPU or else the CPU; all imports of it are here, after its telemetry is off."""

import ctypes
import io
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.errors import ModelFileError, missing_imports_as_dependency_errors
from index.images.preprocess import Pixels
from index.model.backends.backend import INPUT_NAME, OUTPUT_NAME, GraphValue
from index.model.checksum import ModelFile
from index.telemetry import switch_off_telemetry

_DRIVER = "libcuda.so.1"

logger = logging.getLogger(__name__)
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_ERRORS = ("EPFail", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException")


@cache
def load_cuda_libraries(runtime: ModuleType) -> str | None:
    """Load CUDA's libraries for ONNX Runtime; the problem, if any."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"no NVIDIA driver is installed ({_DRIVER} is missing)"
    printed = io.StringIO()
    with redirect_stdout(printed):  # it prints missing libraries to stdout
        runtime.preload_dlls()
    missing = " ".join(printed.getvalue().split())
    return f"CUDA or cuDNN is missing, which the extra gpu installs: {missing}" if missing else None


def list_errors(runtime: ModuleType) -> tuple[Any, ...]:
    """Exceptions of ONNX Runtime, which have no common base; a name that is not UTF-8 fails in the binding."""
    state = runtime.capi.onnxruntime_pybind11_state
    return (*(getattr(state, name) for name in _ERRORS), UnicodeDecodeError)


def import_onnxruntime() -> ModuleType:
    """The onnxruntime module, with telemetry off."""
    switch_off_telemetry()
    with missing_imports_as_dependency_errors("running a model"):
        import onnxruntime
    module: ModuleType = onnxruntime
    return module


def import_quantization() -> ModuleType:
    """The quantization module; its change of `sys.path` is undone."""
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

    def __init__(self, model: ModelFile, *, threads: int | None) -> None:
        runtime = import_onnxruntime()
        self._errors = list_errors(runtime)
        self._path, self.version = str(model.path), str(runtime.__version__)
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.inter_op_num_threads = 1
        options.intra_op_num_threads = threads or 0
        if threads is None:  # spinning would take time of the decoding threads
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = self._open(runtime, model, options)
            self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
            self.inputs, self.outputs = _describe(self._session.get_inputs()), _describe(self._session.get_outputs())
        except self._errors as error:
            raise ModelFileError(self._path, f"not a usable ONNX model: {error}") from error
        self.on_gpu = CUDA in self._session.get_providers()

    def _open(self, runtime: ModuleType, model: ModelFile, options: Any) -> Any:
        """A session on the GPU, or on the CPU with a warning."""
        problem = None  # the runtime's own fallback prints to stdout, and may change vectors in the middle of a run
        if CUDA in runtime.get_available_providers():
            problem = load_cuda_libraries(runtime)
            if problem is None:
                try:
                    session = runtime.InferenceSession(model.data, options, [CUDA, CPU], enable_fallback=0)
                except (RuntimeError, *self._errors) as error:  # a model that is at fault fails below too
                    found = re.search(r"CUDA failure[^;\n]*", str(error))  # without the runtime's stack
                    problem = found[0].strip() if found else str(error)
                else:
                    if CUDA in session.get_providers():
                        return session
                    problem = "ONNX Runtime cannot load what it has for CUDA"
        session = runtime.InferenceSession(model.data, options, [CPU], enable_fallback=0)
        if problem is not None:
            logger.warning("ONNX Runtime is made for GPUs here, but %s: models run on the CPU", problem)
        return session

    def run(self, pixels: Pixels, outputs: Sequence[str] = (OUTPUT_NAME,)) -> Vectors:
        try:
            found = self._session.run(list(outputs), {INPUT_NAME: np.ascontiguousarray(pixels)})
        except self._errors as error:
            raise ModelFileError(self._path, f"the model failed on {len(pixels)} images: {error}") from error
        return np.asarray(found[0] if len(found) == 1 else np.concatenate(found, axis=1), dtype=np.float32)


class OnnxRuntimeOnCpu(OnnxRuntimeBackend):
    """ONNX Runtime without the GPU, with which the GPU is compared."""

    def _open(self, runtime: ModuleType, model: ModelFile, options: Any) -> Any:
        return runtime.InferenceSession(model.data, options, [CPU], enable_fallback=0)


def _describe(values: Iterable[Any]) -> list[GraphValue]:
    return [
        GraphValue(value.name, value.type, tuple(size if isinstance(size, int) else None for size in value.shape))
        for value in values
    ]
