"""An ONNX Runtime made for GPUs runs models on the CPU where there is no GPU, and says why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from index.errors import ModelFileError
from index.model.backends.cuda_libraries import load_cuda_libraries
from index.model.backends.onnxruntime import OnnxRuntimeBackend, import_onnxruntime
from index.model.backends.registry import open_backend
from index.model.seal import SealedModel, read_sealed
from tests.index.model.backends.test_backend_contract import draw_pixels

MADE_FOR_GPUS = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime that is made for GPUs, and a driver that is not installed."""
    monkeypatch.setattr(import_onnxruntime(), "get_available_providers", lambda: MADE_FOR_GPUS)
    monkeypatch.setattr("index.model.backends.cuda_libraries._DRIVER", "libnone.so.1")
    load_cuda_libraries.cache_clear()
    yield
    load_cuda_libraries.cache_clear()


def test_without_a_driver_it_computes_the_same_on_the_cpu_and_says_why(
    no_gpu: None, tiny_model: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        backend = open_backend(read_sealed(tiny_model), threads=1)
    assert not backend.on_gpu
    assert "no NVIDIA driver is installed (libnone.so.1 is missing): models run on the CPU" in caplog.text
    assert capfd.readouterr().out == ""
    assert np.allclose(np.linalg.norm(backend.run(draw_pixels(2)), axis=1), 1, atol=1e-5)


def test_a_gpu_that_fails_is_named_without_the_functions_of_the_runtime(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = import_onnxruntime()
    monkeypatch.setattr(runtime, "get_available_providers", lambda: MADE_FOR_GPUS)
    monkeypatch.setattr("index.model.backends.onnxruntime.load_cuda_libraries", lambda _: None)
    real = runtime.InferenceSession

    def fail(data: bytes, options: object, providers: list[str], **others: object) -> object:
        if providers == MADE_FOR_GPUS:
            raise RuntimeError("/src/cuda_call.cc:154 CudaCall CUDA failure 100: no device ; GPU=-1 ; hostname=vm")
        return real(data, options, providers, **others)

    monkeypatch.setattr(runtime, "InferenceSession", fail)
    with caplog.at_level(logging.WARNING):
        backend = open_backend(read_sealed(tiny_model), threads=1)
    assert not backend.on_gpu
    assert "made for GPUs here, but CUDA failure 100: no device: models run on the CPU" in caplog.text


def test_a_broken_model_is_no_fault_of_the_gpu(
    no_gpu: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ModelFileError, match=r"none\.onnx: not a usable ONNX model"):
        OnnxRuntimeBackend(SealedModel(tmp_path / "none.onnx", b"nothing", sha256=""), threads=1)
    assert not caplog.records
