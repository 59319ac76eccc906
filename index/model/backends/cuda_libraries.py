"""CUDA's libraries for ONNX Runtime: where they came as Python packages, it does not find them by itself."""

from __future__ import annotations

import ctypes
import io
import sys
from contextlib import redirect_stdout
from functools import cache
from types import ModuleType

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def load_cuda_libraries(runtime: ModuleType) -> str | None:
    """What keeps an ONNX Runtime made for GPUs from computing on one; None where the libraries are loaded."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"no NVIDIA driver is installed ({_DRIVER} is missing)"
    printed = io.StringIO()
    with redirect_stdout(printed):  # it prints what it misses, and stdout is for results
        runtime.preload_dlls()
    missing = " ".join(printed.getvalue().split())
    return f"CUDA or cuDNN is missing, which the extra gpu installs: {missing}" if missing else None
