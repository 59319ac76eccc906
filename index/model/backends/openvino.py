"""OpenVINO backend, on the CPU: in float32, in bfloat16 where model and processor have it, and in int8.

In int8, layers left in float32 are computed in bfloat16 where the processor has it: without it a model that is half
quantised took twice as long.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.errors import MissingDependencyError, ModelFileError
from index.images.preprocess import Pixels
from index.model.backends.backend import OUTPUT_NAME, GraphValue
from index.model.checksum import ModelFile
from index.model.contract import METADATA_KEY, find_contract_text
from index.threads import usable_cores

_TELEMETRY = "openvino_telemetry"
_TYPES = {"u8": "tensor(uint8)", "f32": "tensor(float)"}
PRECISIONS = ("float32", "float16", "bfloat16")
_HALF = "bfloat16"
_FIRST_ARRAY = threading.Lock()


def import_openvino() -> Any:
    """The openvino module, imported without its telemetry package."""
    loaded = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError as error:
        raise MissingDependencyError(package="openvino", extra="fast", purpose="running a model") from error
    finally:
        if loaded is None:
            del sys.modules[_TELEMETRY]
        else:
            sys.modules[_TELEMETRY] = loaded
    with _FIRST_ARRAY:  # two threads with their first arrays would deadlock
        openvino.Tensor(np.zeros(1, dtype=np.uint8))
    return openvino


class OpenVinoBackend:
    """A compiled model of OpenVINO; see `InferenceBackend`."""

    name = "openvino"
    on_gpu = False
    packages: tuple[str, ...] = ("openvino",)

    def __init__(self, model: ModelFile, *, threads: int | None) -> None:
        from importlib.metadata import version

        runtime = import_openvino()
        self._path, contract = str(model.path), find_contract_text(model.data)
        self.metadata: Mapping[str, str] = {METADATA_KEY: contract} if contract else {}
        self.version = version("openvino")
        core, cores = runtime.Core(), usable_cores()
        has_half = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if '"precision": "int8"' in contract:
            self.precision = f"int8 and {_HALF}" if has_half else "int8"
        else:
            is_half = has_half and f'"precision": "{_HALF}"' in contract
            self.precision = _HALF if is_half else "float32"
        try:
            self._model = core.compile_model(
                core.read_model(model.data),
                "CPU",
                {
                    "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_PRECISION_HINT": "bf16" if self.precision.endswith(_HALF) else "f32",
                    "INFERENCE_NUM_THREADS": cores if threads is None else min(cores, threads * cores),
                    "NUM_STREAMS": 1 if threads is None else max(1, cores // threads),
                },
            )
        except RuntimeError as error:
            raise ModelFileError(self._path, f"not a usable ONNX model: {error}") from error
        self.inputs, self.outputs = _describe(self._model.inputs), _describe(self._model.outputs)
        self._requests = threading.local()

    def run(self, pixels: Pixels, outputs: Sequence[str] = (OUTPUT_NAME,)) -> Vectors:
        request = getattr(self._requests, "own", None)
        if request is None:
            request = self._requests.own = self._model.create_infer_request()
        try:
            request.infer([np.ascontiguousarray(pixels)], share_inputs=True)
            found = [np.array(request.get_tensor(name).data, dtype=np.float32) for name in outputs]
        except RuntimeError as error:
            raise ModelFileError(self._path, f"the model failed on {len(pixels)} images: {error}") from error
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def _describe(values: Sequence[Any]) -> list[GraphValue]:
    return [
        GraphValue(
            min(value.get_names()),
            _TYPES.get(kind := value.get_element_type().get_type_name(), kind),
            tuple(None if size.is_dynamic else size.get_length() for size in value.get_partial_shape()),
        )
        for value in values
    ]
