"""Models in TensorRT, through ONNX Runtime's provider for it, in float16.

What it compiles of a model for one GPU takes minutes, and is kept in the user's cache folder. Where it cannot be had,
the model runs as ONNX Runtime runs it otherwise, and a warning says why.
"""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from index.errors import InputError
from index.model.backends.backend import INPUT_NAME
from index.model.backends.cuda_libraries import load_cuda_libraries
from index.model.backends.onnxruntime import CPU, CUDA, OnnxRuntimeBackend, import_onnxruntime, shorten
from index.model.contract import ModelContract, find_contract_text
from index.model.seal import SealedModel
from index.user_cache import user_cache

logger = logging.getLogger(__name__)

TENSORRT = "TensorrtExecutionProvider"
_BATCHES = {"min": 1, "opt": 64, "max": 256}


class TensorRtBackend(OnnxRuntimeBackend):
    """A session of ONNX Runtime whose graph TensorRT computes; see `InferenceBackend`.

    One that fell back has the name and the precision of ONNX Runtime.
    """

    name = "tensorrt"
    precision = "float16"
    packages: tuple[str, ...] = ("onnxruntime-gpu",)

    @classmethod
    def is_usable(cls) -> bool:
        """Whether the installed ONNX Runtime is made for TensorRT, and its libraries are there."""
        runtime = import_onnxruntime()
        return TENSORRT in runtime.get_available_providers() and load_cuda_libraries(runtime) is None

    def _open(self, runtime: ModuleType, model: SealedModel, options: Any) -> Any:
        problem = _find_problem(runtime, model)
        if problem is None:
            try:
                side = ModelContract.from_json(find_contract_text(model.data)).preprocess.crop
                providers = [(TENSORRT, _options(model, side)), CUDA, CPU]
                session = runtime.InferenceSession(model.data, options, providers, enable_fallback=0)
            except (InputError, OSError, RuntimeError, *self._errors) as error:  # a bad model fails below too
                problem = shorten(str(error))
            else:
                if TENSORRT in session.get_providers():
                    return session
                problem = "ONNX Runtime cannot load TensorRT's libraries (the package tensorrt has them)"
        logger.warning("TensorRT cannot be used: %s; models run in ONNX Runtime without it", problem)
        self.name, self.precision = OnnxRuntimeBackend.name, OnnxRuntimeBackend.precision
        return super()._open(runtime, model, options)


def _find_problem(runtime: ModuleType, model: SealedModel) -> str | None:
    """Why TensorRT cannot be tried at all."""
    if TENSORRT not in runtime.get_available_providers():
        return "the installed ONNX Runtime is not made for it (that of the extra gpu is)"
    if b'"precision": "int8"' in model.data:
        return "the model's int8 is unsigned, and TensorRT has signed integers only"
    return load_cuda_libraries(runtime)


def _options(model: SealedModel, side: int) -> dict[str, str]:
    """Of the provider: engines for batches of any size up to the largest, of one model each, and kept."""
    folder = user_cache() / "tensorrt" / model.sha256
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {
        f"trt_profile_{which}_shapes": f"{INPUT_NAME}:{batch}x{side}x{side}x3" for which, batch in _BATCHES.items()
    }
    caches = {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1"}
    places = {"trt_engine_cache_path": str(folder), "trt_timing_cache_path": str(folder)}
    return shapes | caches | places | {"trt_fp16_enable": "1"}
